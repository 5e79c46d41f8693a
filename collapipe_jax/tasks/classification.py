"""Classification of texts: BERT with a pooler and a head, scored by accuracy."""

import dataclasses
import functools
from typing import Any, ClassVar

from collapipe_jax.models.bert import LabelledBatch
from collapipe_jax.models.layers import Params
from collapipe_jax.tasks import bert
from collapipe_jax.tasks.classification_data import ClassificationData, load_classification
from collapipe_jax.tasks.objective import held_out_loss
from collapipe_jax.tasks.scores import accuracy, macro_f1, majority_class_baseline
from collapipe_jax.tasks.task import Config, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(bert.BertObjective):
    """The objective of predicting the class of a text; attributes as in ``BertObjective``."""

    headline: ClassVar[str] = "test_accuracy"
    baseline: ClassVar[str] = "test_accuracy_majority"
    pools: ClassVar[bool] = True

    data: ClassificationData

    @classmethod
    def load_data(cls, config: Config) -> ClassificationData:
        """Labelled texts of the configuration as subwords."""
        task = config["task"]
        own = {key: task[key] for key in ("domains", "validation_samples")}
        return load_classification(**bert.data_settings(config), **own)

    def validation_score(self, params: Params) -> float:
        """Accuracy."""
        arrays = self.data.validation
        return accuracy(arrays.labels, self.predict(params, arrays)).value

    def baseline_score(self) -> float:
        """Accuracy of always naming the most frequent class."""
        return self._majority(self.data.validation)

    def test(self, params: Params) -> dict[str, Any]:
        """Accuracy and macro F1, accuracy of the majority class, and the loss."""
        arrays = self.data.test
        predicted = self.predict(params, arrays)
        return {
            "test_accuracy": accuracy(arrays.labels, predicted).value,
            "test_macro_f1": macro_f1(arrays.labels, predicted).value,
            "test_accuracy_majority": self._majority(arrays),
            "test_loss": held_out_loss(params, self.model, arrays),
            "cut_texts": self.data.cut,
        }

    def _majority(self, arrays: LabelledBatch) -> float:
        return majority_class_baseline(self.data.train.labels, arrays.labels).accuracy.value


CLASSIFICATION = Task(
    score_name="accuracy",
    make_sizes=bert.make_sizes,
    make_objective=Classification.from_config,
    count_work=functools.partial(bert.count_work, pools=True),
    reads=bert.READS | {"task.domains", "task.validation_samples"},
    needs=bert.NEEDS,
)
