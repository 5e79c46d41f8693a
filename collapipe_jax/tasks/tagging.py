"""Tagging of entities: BERT with a head at every token, scored by span F1."""

import dataclasses
import functools
from typing import Any, ClassVar

from collapipe_jax.models.bert import LabelledBatch
from collapipe_jax.models.layers import Params
from collapipe_jax.tasks import bert
from collapipe_jax.tasks.objective import held_out_loss
from collapipe_jax.tasks.scores import Score, memorised_tag_baseline, span_f1, span_recall
from collapipe_jax.tasks.tagging_data import TaggedText, TaggingData, load_tagging, word_tags
from collapipe_jax.tasks.task import Config, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(bert.BertObjective):
    """The objective of finding entities; attributes as in ``BertObjective``."""

    headline: ClassVar[str] = "test_span_f1"
    baseline: ClassVar[str] = "test_span_f1_memorised"
    pools: ClassVar[bool] = False

    data: TaggingData

    @classmethod
    def load_data(cls, config: Config) -> TaggingData:
        """Tagged sentences of the configuration in windows of subwords."""
        return load_tagging(**bert.data_settings(config))

    def validation_score(self, params: Params) -> float:
        """Span F1."""
        text = self.data.validation_text
        return _span_f1(text, self._tags(params, self.data.validation, text)).value

    def baseline_score(self) -> float:
        """Span F1 of each word's most frequent tag in training."""
        return self._memorised(self.data.validation_text).value

    def test(self, params: Params) -> dict[str, Any]:
        """Span F1 of the model and of memorised tags, recall of new entities, and the loss.

        The majority class of all words finds no span: its F1 is 0.
        """
        data = self.data
        predicted = self._tags(params, data.test, data.test_text)
        score = _span_f1(data.test_text, predicted)
        recall = span_recall(data.train_text.sentences, data.test_text.sentences, predicted)
        return {
            "test_span_f1": score.value,
            "test_span_f1_memorised": self._memorised(data.test_text).value,
            "test_recall_of_seen": recall.seen,
            "test_recall_of_unseen": recall.unseen,
            "span_f1_signature": score.signature,
            "test_loss": held_out_loss(params, self.model, data.test),
        }

    def _tags(self, params: Params, arrays: LabelledBatch, text: TaggedText) -> list[list[str]]:
        return word_tags(self.data.labels, arrays, text, self.predict(params, arrays))

    def _memorised(self, text: TaggedText) -> Score:
        train, test = (zip(*part.sentences, strict=True) for part in (self.data.train_text, text))
        return memorised_tag_baseline(*train, *test)


def _span_f1(text: TaggedText, predicted: list[list[str]]) -> Score:
    return span_f1([sentence.tags for sentence in text.sentences], predicted)


TAGGING = Task(
    score_name="span F1",
    make_sizes=bert.make_sizes,
    make_objective=Tagging.from_config,
    count_work=functools.partial(bert.count_work, pools=False),
    reads=bert.READS,
    needs=bert.NEEDS,
)
