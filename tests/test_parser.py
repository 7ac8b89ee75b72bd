"""Layers of settings, and the one sentence for each thing that can be wrong with one."""

# ruff: noqa: E501 (sentences are quoted whole)

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from mymodels import First, make_net

from flsel.arguments.spec import Spec
from flsel.commands.argv import parse, words
from flsel.config import RunConfig
from flsel.config.parser import to_types
from flsel.config.plugin import rule
from flsel.config.schema import keys, plugins
from flsel.errors import UserError
from flsel.models import MLP
from flsel.partition import Dirichlet, DirichletPerClass, FedCorDirichlet, Natural
from flsel.selectors.powd import PowD
from flsel.selectors.uniform import Uniform
from flsel.updates import TopK


def parsed(*arguments: str) -> RunConfig:
    return parse(words(arguments))


def refused(*arguments: str) -> str:
    with pytest.raises(UserError) as error:
        parsed(*arguments)
    return str(error.value)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "c.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


# --- layers -----------------------------------------------------------------------------------------------


def test_what_comes_later_wins(file: Any) -> None:
    one, two = file("rounds: 5\nclients_per_round: 2\n", "1.yaml"), file("rounds: 6\n", "2.yaml")
    assert parsed("--config", one, "--config", two).rounds == 6
    assert parsed("--config", two, "--config", one).rounds == 5
    assert parsed("--config", one, "--config", two).clients_per_round == 2
    assert parsed("--config", one, "--rounds", "7").rounds == 7
    assert parsed("--rounds", "7", "--config", one).rounds == 5


def test_true_may_be_left_out() -> None:
    config = parsed("--quiet", "--data.download", "--rounds=3")
    assert config.quiet
    assert config.data.download
    assert config.rounds == 3
    assert not parsed("--quiet", "false").quiet


def test_a_class_and_its_arguments_in_any_order() -> None:
    assert parsed("--selector", "PowD", "--selector.d", "9").selector.d == 9
    assert parsed("--selector.d", "9", "--selector", "PowD").selector.d == 9
    assert parsed("--selector.init_args.d=9", "--selector.class_path=PowD").selector.d == 9
    assert parsed("--selector", "{class_path: PowD, init_args: {d: 9}}").selector.d == 9


def test_arguments_of_a_class_add_up_over_the_layers(file: Any) -> None:
    one = file("partition: {class_path: Dirichlet, init_args: {alpha: 0.7}}", "1.yaml")
    two = file("partition: {init_args: {sizes: [1, 2]}}", "2.yaml")
    assert parsed("--config", one, "--config", two).partition == Dirichlet(0.7, (1.0, 2.0))
    assert parsed("--config", one, "--partition.alpha", "0.9").partition == Dirichlet(0.9)
    assert parsed("--config", one, "--partition", "Dirichlet").partition == Dirichlet(0.7)
    assert parsed("--config", one, "--partition", "flsel.partition.Dirichlet").partition == Dirichlet(0.7)


def test_another_class_starts_from_its_own_defaults(file: Any) -> None:
    one = file("partition: {class_path: Dirichlet, init_args: {alpha: 0.7}}", "1.yaml")
    two = file("partition: DirichletPerClass", "2.yaml")
    assert parsed("--config", one, "--partition", "FedCorDirichlet").partition == FedCorDirichlet()
    assert parsed("--config", one, "--config", two).partition == DirichletPerClass()
    # The default server optimizer is SGD(lr=1); Adam has a learning rate of its own.
    assert Spec.of(parsed("--server_optimizer", "Adam").server_optimizer, "x").init_args["lr"] == 0.001


def test_flsels_own_class_wins_where_another_package_has_the_name() -> None:
    import torchvision.ops

    assert torchvision.ops.MLP.__name__ == "MLP"
    for given in ("MLP", "{class_path: MLP}", "flsel.models.MLP"):
        assert parsed("--model", given).to_dict()["model"]["class_path"] == "flsel.models.MLP"
    assert (
        RunConfig.from_dict({"model": {"class_path": "MLP", "init_args": {"hidden": [3]}}}).model.made is MLP
    )  # type: ignore[attr-defined]


def test_a_selector_in_a_new_file_needs_no_module_path() -> None:
    import flsel.selectors

    assert isinstance(flsel.selectors.__path__, list)
    known = plugins()["selector"].classes()
    assert {"Uniform", "MD", "PowD", "AFL", "Complete"} <= known.keys()
    for name, made in known.items():
        assert made.__module__.startswith("flsel.selectors."), name


def test_classes_of_a_user_and_functions(file: Any) -> None:
    config = parsed("--selector", "mymodels.First", "--selector.power", "2", "--model", "mymodels.make_net")
    assert isinstance(config.selector, First)
    assert config.model == Spec("mymodels.make_net")
    assert config.model.made is make_net  # type: ignore[attr-defined]
    assert RunConfig.from_dict({"model": {"class_path": "mymodels.make_net"}}).model == config.model


@pytest.mark.parametrize("alone", ["TopK", "{class_path: TopK}", "flsel.updates.TopK"])
def test_a_class_stands_for_a_list_of_one(alone: str) -> None:
    assert parsed("--updates", alone).to_dict() == RunConfig(updates=(TopK(),)).to_dict()


def test_the_defaults_are_those_of_the_schema() -> None:
    config = RunConfig.from_dict({})
    assert isinstance(config.partition, Natural)
    assert isinstance(config.selector, Uniform)
    assert config.to_dict() == RunConfig().to_dict()


def test_settings_may_be_nested_or_dotted() -> None:
    assert RunConfig.from_dict({"local": {"steps": 3}}).local.steps == 3
    assert RunConfig.from_dict({"local.steps": 3}).local.steps == 3
    assert RunConfig.from_dict({"local": {"steps": 3}}, {"local": {"batch_size": 7}}).local.steps == 3
    assert RunConfig.from_dict({"local": {"steps": 3}}, {"local": {"steps": 4}}).local.steps == 4
    assert RunConfig.from_dict({"selector": PowD.__name__}).selector.d is None


def test_every_type_has_a_rule_in_words() -> None:
    for key, hint in keys().items():
        assert not rule(hint).startswith("of type"), key


# --- what is wrong ----------------------------------------------------------------------------------------

WRONG = [
    (["--roundz", "3"], "there is no setting roundz; did you mean rounds?"),
    (["--batch_size", "3"], "there is no setting batch_size; did you mean local.batch_size?"),
    (["--round", "3"], "there is no setting round; did you mean rounds?"),
    (["--xyzzy", "3"], "there is no setting xyzzy; --help lists them."),
    (["--track.xyzzy", "3"], "there is no setting track.xyzzy; track has tracker, project, entity, group, variant, tags, mode."),
    (["--data.synthetic.clases", "3"], "there is no setting data.synthetic.clases; did you mean data.synthetic.classes?"),
    (["--local", "3"], "local is a group of settings: set local.batch_size, local.epochs and so on."),
    (["--rounds"], "rounds needs a value: --rounds VALUE."),
    (["--local.help"], "--local.help: local takes no class; --help lists all settings."),
    (["--selector.class_path"], "selector.class_path needs a value: --selector.class_path VALUE."),
    (["--config"], "config needs a file: --config FILE."),
    (["--", "--rounds", "3"], "'--' is not expected here: a setting is given as --key value."),
    (["--config", ""], "config needs a file: --config FILE."),
    (["3"], "'3' is not expected here: a setting is given as --key value."),
    (["--rounds", "9" * 5000], f"rounds must be a whole number in [1, 100,000,000], got '{'9' * 99}... (5,002 characters)."),
    (["--callbacks", "[" * 5000], "callbacks: line 1: settings are nested at most 100 deep."),
    (["--rounds", "010"], "rounds must be a whole number in [1, 100,000,000], got '010'."),
    (["--rounds", "1_0"], "rounds must be a whole number in [1, 100,000,000], got '1_0'."),
    (["--local.optimizer.lr", "1_0.5"], "local.optimizer.lr must be a number, got '1_0.5'."),
    (["--seed", "1:30"], "seed must be a whole number >= 0, got '1:30'."),
    (["--data.shape", "[010]"], "data.shape: line 1: YAML reads 010 as another number; write it plainly, or in quotes."),
    (["--selector", "{class_path: PowD, init_args: {d: 4, d: 5}}"], "selector: line 1: d is set a second time; keep one."),
    (["--updates", "[{class_path: TopK, class_path: Clip}]"], "updates: line 1: class_path is set a second time; keep one."),
    (["--updates", "[{class_path: TopK, init_args: 3}]"], "updates[0].init_args must be a mapping of arguments, got 3."),
    (["--local.optimizer", "[SGD]"], "local.optimizer must be a class of torch.optim, or the import path of another Optimizer, got ['SGD']."),
    (["--updates.share", "0.1"], "updates is a list of classes: write updates: [{class_path: NAME, init_args: {share: 0.1}}]."),
    (["c.yaml"], "'c.yaml' is not expected here: a setting is given as --key value; a file of settings as --config c.yaml."),
    (["--rounds", "x"], "rounds must be a whole number in [1, 100,000,000], got 'x'."),
    (["--rounds", "1e2"], "rounds must be a whole number in [1, 100,000,000], got '1e2'."),
    (["--rounds", "2.5"], "rounds must be a whole number in [1, 100,000,000], got '2.5'."),
    (["--clients", "x"], "clients must be a whole number >= 1 or null, got 'x'."),
    (["--quiet", "maybe"], "quiet must be true or false, got 'maybe'."),
    (["--precision", "8"], "precision must be one of 32-true, 64-true, bf16-mixed, bf16-true, got '8'."),
    (["--track.tracker", "wandbb"], "track.tracker must be none, wandb, mlflow, tensorboard or the import path of a Lightning logger, several separated by commas, got 'wandbb'."),
    (["--data.shape", "[a]"], "data.shape must be a list of one or more whole numbers >= 1 or null, got ['a']."),
    (["--data.init_args", "3"], "data.init_args must be a mapping, got '3'."),
    (["--rounds", "-3"], "rounds must be a whole number in [1, 100,000,000], got -3."),
    (["--budget", "3"], "budget is called clients_per_round: rename the key."),
    (["--clients_per_round", "31"], "clients_per_round must be at most the number of clients, got clients_per_round 31 of 30."),
    (["--evaluation.target", "2"], "evaluation.target must be in (0, 1] for an accuracy, got 2: set evaluation.score for a target of another measure, such as test/loss."),
    (["--evaluation.score", "test/accuracy", "--evaluation.target", "0"], "evaluation.target must be in (0, 1] for an accuracy, got 0: set"),
    (["--output.name", "a/b"], "output.name must be a plain folder name, got 'a/b'."),
    (["--output.name", "ä" * 121], "output.name must be a folder name of at most 240 bytes, got 242."),
    (["--data.name", "mnistt"], "data.name must be one of synthetic, fashion_mnist, mnist, cifar10, cifar100, shakespeare, folder, npz, leaf or an import path, got 'mnistt'."),
    # classes
    (["--selector", "powd2"], "selector has no class powd2; did you mean PowD? (--selector.help lists them)"),
    (["--selector", "uniform"], "selector has no class uniform; did you mean Uniform? (--selector.help lists them)"),
    (["--objective", "Sgd123"], "objective must be one of "),
    (["--partition", "null"], ", or the import path of another Partition, got null."),
    (["--local.optimizer", "SGDD"], "local.optimizer has no class SGDD; did you mean SGD? (--local.optimizer.help lists them)"),
    (["--local.optimizer", "Xyzzy"], "local.optimizer must be a class of torch.optim, or the import path of another Optimizer, got 'Xyzzy'."),
    (["--model", "flsel.models.MLPP"], "model cannot be flsel.models.MLPP: flsel.models has no MLPP; did you mean flsel.models.MLP?"),
    (["--model", "nothere.Net"], "model cannot be nothere.Net: there is no module nothere in the current folder or among the installed packages."),
    (["--model", "flsel.nothere.Net"], "model cannot be flsel.nothere.Net: flsel has no nothere."),
    (["--model", "collections.OrderedDict"], "model cannot be collections.OrderedDict: settings call nothing of Python's standard library; call it in a function of your own, and name that."),
    (["--selector", "mymodels.make_net"], "selector must be derived from Selector, and mymodels.make_net is not."),
    (["--selector", "mymodels.NoSelect"], "selector cannot be mymodels.NoSelect, which does not define select."),
    # arguments of classes
    (["--selector.q", "3"], "selector.q is not an argument of Uniform, which takes weights."),
    (["--partition", "Dirichlet", "--partition.alph", "2"], "partition.alph is not an argument of Dirichlet, which takes alpha, sizes; did you mean alpha?"),
    (["--partition.alpha", "2"], "partition.alpha is not an argument of Natural, which takes no arguments."),
    (["--partition", "Dirichlet", "--partition.alpha", "x"], "partition.alpha must be a finite number > 0, got 'x'."),
    (["--partition", "Dirichlet", "--partition.alpha", "-2"], "partition.alpha must be a finite number > 0, got -2.0."),
    (["--local.optimizer", "SGD", "--local.optimizer.lrr", "3"], "local.optimizer.lrr is not an argument of SGD, which takes lr, momentum,"),
    (["--local.optimizer", "SGD", "--local.optimizer.lr", "fast"], "local.optimizer.lr must be a number, got 'fast'."),
    (["--local.lr_schedule", "MultiStepLR"], "local.lr_schedule.milestones must be set: MultiStepLR has no default for it."),
    (["--local.lr_schedule.step_size", "x", "--local.lr_schedule", "StepLR"], "local.lr_schedule.step_size must be a whole number, got 'x'."),
    (["--model", "mymodels.Net"], "model.width must be set: Net has no default for it."),
    (["--model", "mymodels.Net", "--model.width", "x"], "model.width must be a whole number, got 'x'."),
    (["--model", "mymodels.make_net", "--model.num_classes", "x"], "model.num_classes must be a whole number, got 'x'."),
    (["--model", "mymodels.make_net", "--model.depth", "3"], "model.depth is not an argument of make_net, which takes num_classes, input_shape."),
    (["--selector", "mymodels.Divides", "--selector.by", "0"], "selector Divides cannot be built: ZeroDivisionError: float division by zero (mymodels.py, line "),
    (["--selector", "{class_path: PowD, d: 3}"], "selector.d is misplaced: write selector: {class_path: NAME, init_args: {ARGUMENT: VALUE}}."),
    (["--callbacks", "[Xyzzy]"], "callbacks[0] must be a class of lightning.pytorch.callbacks, or the import path of another Callback, got 'Xyzzy'."),
    (["--callbacks", "Xyzzy"], "callbacks[0] must be a class of lightning.pytorch.callbacks,"),
    (["--callbacks", "3"], "callbacks must be a list, each item a class of lightning.pytorch.callbacks,"),
    (["--updates", "null"], "updates must be a list, each item one of Clip,"),
    (["--updates", "{k: 3}"], "updates must be a list, each item one of Clip,"),
    (["--updates", "topk"], "updates[0] has no class topk; did you mean TopK? (--updates.help lists them)"),
    (["--track.tags", "mine"], "track.tags must be a list of texts, got 'mine': write [mine]."),
    (["--local.personal", "*.bn.*"], """local.personal must be a list of texts, got '*.bn.*': write ["*.bn.*"]."""),
    (["--local.personal", "[*.bn.*]"], "local.personal must be a list of texts, got '[*.bn.*]': put each in quotes."),
    (["--callbacks", "[EarlyStopping]"], "callbacks[0].monitor must be set: EarlyStopping has no default for it."),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=[" ".join(given)[:60] for given, _ in WRONG])
def test_what_is_wrong_on_the_command_line(arguments: list[str], sentence: str) -> None:
    said = refused(*arguments)
    assert said == sentence if sentence.endswith((".", "?", ")")) and sentence[0] != "," else sentence in said
    assert "\n" not in said


WRONG_FILES = [
    ("roundz: 3", "there is no setting roundz; did you mean rounds?"),
    ("1: 2", "there is no setting 1; --help lists them."),
    ("local: {batchsize: 3}", "there is no setting local.batchsize; did you mean local.batch_size?"),
    ("local: 3", "local is a group of settings: set local.batch_size, local.epochs and so on."),
    ("local:", "local is a group of settings: set local.batch_size, local.epochs and so on."),
    ("rounds: [3]", "rounds must be a whole number in [1, 100,000,000], got [3]."),
    ("rounds: 1e2", "rounds must be a whole number in [1, 100,000,000], got 100.0."),
    ("rounds:", "rounds must be a whole number in [1, 100,000,000], got null."),
    ("rounds: x\nseed: 1", "rounds must be a whole number in [1, 100,000,000], got 'x'."),
    ("seed: yes", "seed must be a whole number >= 0, got true."),
    ("quiet: 1", "quiet must be true or false, got 1."),
    ("output: {name: 3}", "output.name must be text or null, got 3; write it in quotes."),
    ("rounds: -3", "rounds must be a whole number in [1, 100,000,000], got -3."),
    ("evaluation: {every: 0}", "evaluation.every must be a whole number >= 1, got 0."),
    ("partition: {class_path: Dirichlet, init_args: {alpha: -1}}", "partition.alpha must be a finite number > 0, got -1.0."),
    ("partition: {class_path: Dirichlet, init_args: {alpha: null}}", "partition.alpha must be a finite number > 0, got null."),
    ("selector: {class_path: PowD, d: 3}", "selector.d is misplaced: write selector: {class_path: NAME, init_args: {ARGUMENT: VALUE}}."),
    ("updates: [{class_path: TopK, share: 0.1}]", "updates[0].share is misplaced: write updates[0]: {class_path: NAME, init_args: {ARGUMENT: VALUE}}."),
    ("callbacks: {class_path: Timer, interval: epoch}", "callbacks[0].interval is misplaced: write callbacks[0]: {class_path: NAME, init_args: {ARGUMENT: VALUE}}."),
    ("selector: {PowD: {d: 3}}", "selector.PowD is misplaced: write selector: {class_path: NAME, init_args: {ARGUMENT: VALUE}}."),
    ("selector: {class_path: PowD, init_args: 3}", "selector.init_args must be a mapping of arguments, got 3."),
    ("selector: {class_path: PowD, init_args: {d: many}}", "selector.d must be a whole number >= 1 or null, got 'many'."),
    ("selector: nothere.Foo", "selector cannot be nothere.Foo: there is no module nothere in the current folder or among the installed packages."),
    ("selector: {class_path: Powd}", "selector has no class Powd; did you mean PowD? (--selector.help lists them)"),
    ("local: {optimizer: {class_path: SGD, init_args: {lr: fast}}}", "local.optimizer.lr must be a number, got 'fast'."),
    ("", "the file must be a mapping of settings, such as `rounds: 100`, got nothing."),
    ("# nothing\n", "the file must be a mapping of settings, such as `rounds: 100`, got nothing."),
    ("- 1\n- 2", "the file must be a mapping of settings, such as `rounds: 100`, got a list."),
    ("rounds", "the file must be a mapping of settings, such as `rounds: 100`, got one value."),
    ("rounds: 3\nseed: 1\nrounds: 4", "line 3: rounds is set a second time; keep one."),
    ("rounds: 3\ndata: &it\n  name: *it\n  seed: 1", "line 2: an alias is part of what it stands for."),
    ("data:\n  name: mnist\n  name: synthetic", "line 3: name is set a second time; keep one."),
    ("a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 8)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)), "the file has more than 100,000 values when its aliases are written out."),
    ("data: " + "[" * 5000, "line 1: settings are nested at most 100 deep."),
    ('{"rounds":' * 3000, "line 1: settings are nested at most 100 deep."),
    ("rounds: !!int abc", "the file is not valid YAML: a value does not fit its tag, or has too many digits."),
    ("rounds: !!timestamp abc", "the file is not valid YAML: a value does not fit its tag, or has too many digits."),
    ("quiet: !!bool perhaps", "the file is not valid YAML: a value does not fit its tag, or has too many digits."),
    (
        "rounds: 1" + "0" * 13,
        "rounds must be a whole number in [1, 100,000,000], got 10000000000000, which take 317 years or more.",
    ),
    ("clients: 5\nclients_per_round: 1" + "0" * 200, "clients_per_round must be a whole number >= 1, of at most 64 bits, got a number of about 201 digits."),
    ("rounds: " + "x" * 5000, f"rounds must be a whole number in [1, 100,000,000], got '{'x' * 99}... (5,002 characters)."),
    ('output: {dir: "a\\0b"}', "output.dir must be text, got 'a\\x00b'."),
    ("# " + "x" * 200_000, "the file must have at most 200,000 bytes to be a file of settings."),
    ("rounds: 3\n  foo: [", "the file is not valid YAML: line 2, column 6: mapping values are not allowed in this context (a colon too many, or a line that is indented too far)."),
    ("local:\n\tsteps: 3", "the file is not valid YAML: line 2, column 1: found character that cannot start any token (a tab: indent with spaces)."),
    ("selector: @PowD", "the file is not valid YAML: line 1, column 11: found character that cannot start any token (text that begins with @ needs quotes)."),
    ("selector: 'PowD\n", "the file is not valid YAML: line 2, column 1: found unexpected end of stream (a quote is not closed)."),
    ("rounds: 3\x07", "the file is not valid YAML: it holds a control character."),
    ("local:\n\u00a0\u00a0steps: 3", "line 2 begins with a character that only looks like a space; use spaces."),
    ("rounds: 3\nseed: 010", "line 2: YAML reads 010 as another number; write it plainly, or in quotes."),
    ("rounds: 1_0", "line 1: YAML reads 1_0 as another number; write it plainly, or in quotes."),
    ("output: {name: 2026_11_26}", "line 1: YAML reads 2026_11_26 as another number; write it plainly, or in quotes."),
    ("rounds: 1:30", "line 1: YAML reads 1:30 as another number; write it plainly, or in quotes."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WRONG_FILES, ids=[text[:40] for text, _ in WRONG_FILES])
def test_what_is_wrong_in_a_file(text: str, sentence: str, file: Any) -> None:
    path = file(text)
    assert refused("--config", path) == f"{path}: {sentence}"


def test_the_file_that_is_wrong_is_named(file: Any, tmp_path: Path) -> None:
    good, bad = file("rounds: 3\n", "good.yaml"), file("rounds: -3\n", "bad.yaml")
    assert (
        refused("--config", bad, "--config", good, "--rounds", "-4")
        == "rounds must be a whole number in [1, 100,000,000], got -4."
    )
    assert (
        refused("--config", good, "--config", bad)
        == f"{bad}: rounds must be a whole number in [1, 100,000,000], got -3."
    )
    assert parsed("--config", bad, "--config", good).rounds == 3
    with pytest.raises(UserError, match=r"nothere.yaml: there is no such file"):
        RunConfig.from_file(tmp_path / "nothere.yaml")
    assert refused("--config", str(tmp_path)) == (
        f"{tmp_path}: this is a folder; give a file, such as config.yaml in the folder of a run."
    )
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    assert "it is not text" in refused("--config", str(tmp_path / "c.yaml"))


def test_settings_as_values_are_refused_like_those_of_a_file() -> None:
    with pytest.raises(UserError, match=r"^rounds must be a whole number in \[1, 100,000,000\], got 'x'.$"):
        RunConfig.from_dict({"rounds": "x"})


def test_a_module_that_does_not_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "brokenpackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lacks.py").write_text("import surely_not_installed\n")
    (tmp_path / "syntax_is_broken.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = refused("--model", "brokenpackage.lacks.Net")
    assert said.endswith(
        "whose import failed: ModuleNotFoundError: No module named 'surely_not_installed' (lacks.py, line 1)."
    )
    said = refused("--model", "syntax_is_broken.Net")
    assert "whose import failed: SyntaxError: invalid syntax (syntax_is_broken.py, line 1)." in said


@pytest.mark.parametrize("key", ["local.optimizer", "server_optimizer"])
def test_what_a_class_refuses_later_names_the_setting(key: str) -> None:
    config = parsed(f"--{key}", "SGD", f"--{key}.lr", "-3")
    factory = config.server_optimizer if key == "server_optimizer" else config.local.optimizer
    assert isinstance(factory, Spec)
    with pytest.raises(UserError, match=rf"^{key} SGD cannot be built: Invalid learning rate: -3.0.$"):
        factory([])
    with pytest.raises(UserError, match=r"^model.hidden must be widths of at least 1, got \[-1\].$"):
        parsed("--model", "MLP", "--model.hidden", "[-1]").model(num_classes=2, input_shape=(3,))  # type: ignore[call-arg]


def test_a_key_that_one_file_sets_in_two_ways_is_refused(file: Any) -> None:
    path = file("local:\n  batch_size: 3\nlocal.batch_size: 4\n")
    assert refused("--config", path) == (
        f"{path}: local.batch_size is set twice, by its whole name and in another way; keep one of them."
    )
    path = file("selector.d: 3\nselector: {class_path: PowD, init_args: {d: 4}}\n")
    assert refused("--config", path) == (
        f"{path}: selector.d is set twice, in a mapping and by its name; keep one of them."
    )
    path = file("selector: PowD\nselector.d: 3\nselector.init_args.d: 4\n")
    assert refused("--config", path).startswith(f"{path}: selector.d is set twice, ")
    path = file("data: {name: mine.Data, init_args: {n: 1}}\ndata.init_args.n: 2\n")
    assert refused("--config", path).startswith(f"{path}: data.init_args.n is set twice, ")


def test_a_file_may_name_an_argument_before_its_class(file: Any) -> None:
    path = file("selector.d: 12\nselector: PowD\nlocal: {optimizer.lr: 0.5, optimizer: Adam}\n")
    config = parsed("--config", path)
    assert config.to_dict()["selector"]["init_args"] == {"d": 12}
    assert config.to_dict()["local"]["optimizer"]["init_args"]["lr"] == 0.5


def test_unions_of_the_same_types_are_read_in_their_own_order() -> None:
    def first_text(value: str | int = 0) -> None: ...

    def first_number(value: int | str = 0) -> None: ...

    given = {"value": "1"}
    for _ in range(2):
        assert to_types("", first_text, given) == {"value": "1"}
        assert to_types("", first_number, given) == {"value": 1}


def test_an_annotation_that_cannot_be_hashed_is_read() -> None:
    def made(value: Annotated[int, ["not hashable"]] = 0) -> None: ...

    assert to_types("", made, {"value": "3"}) == {"value": 3}
