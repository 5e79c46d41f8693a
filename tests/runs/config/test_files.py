import re

import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.config.files import parse_overrides, read_config

DEFAULT = "default"


pytestmark = pytest.mark.usefixtures("in_root")


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("--config.training.batch=16", "training", "batch", 16),
        ("--config.control.v=30", "control", "v", 30.0),
        ("--config.control.v=2.5e-1", "control", "v", 0.25),
        ("--config.radio.bs_power_dbm=-3.5", "radio", "bs_power_dbm", -3.5),
        (
            "--config.training.micro_batch_choices=(1, 2)",
            "training",
            "micro_batch_choices",
            (1, 2),
        ),
        ("--config.training.micro_batch_choices=[4]", "training", "micro_batch_choices", (4,)),
        (
            "--config.devices.kinds=('jetson_nano',)",
            "devices",
            "kinds",
            ("jetson_nano",),
        ),
        ("--config.task.corpus=a/b=c.txt", "task", "corpus", "a/b=c.txt"),
        ("--config.task.corpus=12", "task", "corpus", "12"),
        ("--config.task.reverse=True", "task", "reverse", True),
    ],
)
def test_override_sets_one_key_and_keeps_its_type(override, section, key, value):
    config, untouched = read_config(DEFAULT, parse_overrides([override])), read_config()
    assert config[section][key] == value
    assert type(config[section][key]) is type(untouched[section][key])
    with config.unlocked():
        config[section][key] = untouched[section][key]
    assert config.to_dict() == untouched.to_dict()


def test_top_level_key_and_later_override_wins():
    assert read_config(DEFAULT, parse_overrides(["--config.seed=3", "--config.seed=4"])).seed == 4


@pytest.mark.parametrize(
    ("override", "key", "remedy"),
    [
        ("--config.training.bacth=16", "training.bacth", "Did you mean training.batch"),
        ("--config.batch=16", "batch", "training.batch"),
        ("--config.zzzzzz=16", "zzzzzz", "docs/reference/configuration.md"),
        ("--config.training=16", "training", ""),
        ("--config.training.batch", "argument", "--config.section.key=value"),
        ("--batch=3", "argument", "--config.section.key=value"),
        ("--config.training.batch=big", "training.batch", "like 16"),
        ("--config.training.batch=2.5", "training.batch", "like 16"),
        ("--config.training.batch=True", "training.batch", "like 16"),
        ("--config.training.batch=None", "training.batch", "like 16"),
        ("--config.control.v=True", "control.v", "like 3.0"),
        ("--config.control.v=nan", "control.v", "like 3.0"),
        ("--config.control.v={[]: 1}", "control.v", "like 3.0"),
        ("--config.task.reverse=1", "task.reverse", "like False"),
        ("--config.task.reverse=no", "task.reverse", "like False"),
        ("--config.training.micro_batch_choices=a", "training.micro_batch_choices", "like 1"),
    ],
)
def test_wrong_override_names_key_and_remedy(override, key, remedy):
    with pytest.raises(InputError) as told:
        read_config(DEFAULT, parse_overrides([override]))
    assert told.value.key == key
    assert remedy in told.value.remedy


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (None, "no such file"),
        ("def get_config(:\n", "SyntaxError"),
        ("def get_config():\n    raise KeyError('deep inside')\n", "deep inside"),
        ("import no_such_module_at_all\n", "no_such_module_at_all"),
        ("x = 1\n", "get_config"),
        ("def get_config():\n    return {'seed': 0}\n", "returns dict"),
    ],
)
def test_config_file_that_fails(tmp_path, text, part):
    path = tmp_path / "config.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=re.escape(part)) as told:
        read_config(str(path))
    assert told.value.key == "--config"
    assert str(path) == told.value.value
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("lost", ["network.file", "network"])
def test_a_file_that_lacks_a_key_is_told_which(tmp_path, lost):
    path = tmp_path / "config.py"
    path.write_text(
        "from collapipe_jax.runs.config import default\n"
        "def get_config():\n"
        "    config = default.get_config().copy_and_resolve_references()\n"
        f"    del config.{lost}\n"
        "    return config\n"
    )
    with pytest.raises(InputError, match="the key is missing") as told:
        read_config(str(path))
    assert told.value.key == lost


def test_an_argument_chooses_a_variant():
    plain, other = read_config("paper"), read_config("paper:lowband")
    assert (plain.training.local_steps, other.training.local_steps) == (4, 1)
    rich = read_config("paper:rich", {"devices.memory_share": plain.devices.memory_share})
    assert rich.to_dict() == plain.to_dict()
    with pytest.raises(InputError, match=r"no such variant.*paper:transformer"):
        read_config("paper:highband")
    with pytest.raises(InputError, match=r"no such variant\. It has none"):
        read_config("quickstart:fast")


def test_config_that_is_no_python_file(tmp_path):
    path = tmp_path / "config.txt"
    path.write_text("seed = 0\n")
    with pytest.raises(InputError, match=r"FILE\.py"):
        read_config(str(path))


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("papr", "Did you mean paper"),
        ("no_such", "Choose among: default"),
        ("no_such.module", "FILE.py"),
        ("configs/no_such.py", "Name a file"),
    ],
)
def test_a_wrong_configuration_is_answered_with_the_right_ones(path, remedy):
    with pytest.raises(InputError) as told:
        read_config(path)
    assert told.value.key == "--config"
    assert remedy in told.value.remedy


def test_a_configuration_is_found_by_file_and_by_module():
    by_file, by_module = read_config("configs/stability.py"), read_config("configs.stability")
    assert by_file.to_dict() == by_module.to_dict()


def test_values_of_python_are_taken_as_they_are():
    config = read_config("default", {"control.v": 10, "training.batch": "32"})
    assert (config.control.v, config.training.batch) == (10.0, 32)


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ({"model.adapter_targets": "all"}, {"adapter_targets": ("all",)}),
        ({"model.adapter_targets": "query, outer"}, {"adapter_targets": ("query", "outer")}),
        ({"model.adapter_targets": "('key',)"}, {"adapter_targets": ("key",)}),
    ],
)
def test_a_list_is_written_with_commas_or_as_one_word(override, values):
    assert read_config("quickstart", override).model.adapter_targets == values["adapter_targets"]


def test_micro_batches_follow_the_batch_by_its_divisors():
    choices = {
        batch: read_config("quickstart", {"training.batch": str(batch)}).training
        for batch in (12, 16, 32)
    }
    assert choices[12].micro_batch_choices == (1, 2, 3, 4, 6, 12)
    assert choices[16].micro_batch_choices == (1, 2, 4, 8, 16)
    assert choices[32].micro_batch_choices == (1, 2, 4, 8, 16, 32)
    by_hand = {"training.batch": "12", "training.micro_batch_choices": "1,4"}
    assert read_config("quickstart", by_hand).training.micro_batch_choices == (1, 4)
