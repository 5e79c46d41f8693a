"""Public corpora: where each file comes from, its digest, its licence and whom to cite.

Files from repositories are pinned to a commit. The digests are those of the files that the
figures in the documentation were measured with.
"""

import dataclasses

_RAW = "https://raw.githubusercontent.com"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFile:
    """A file of a corpus.

    Attributes:
      name: of the file in the folder of its corpus.
      url: what to download.
      sha256: digest of the file, in hexadecimal.
      member: its name in the zip archive that ``url`` is; empty where ``url`` is the file.
      replaced_upstream: the publisher puts newer versions under the same address.
    """

    name: str
    url: str
    sha256: str
    member: str = ""
    replaced_upstream: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus or vocabulary, in a folder of its own.

    Attributes:
      title: what it is.
      licence: under which terms it may be used.
      citation: whom to name.
      files: all that belongs to it, its licence included.
    """

    title: str
    licence: str
    citation: str
    files: tuple[CorpusFile, ...]


def _pinned(repository: str, commit: str, *rows: tuple[str, str, str]) -> tuple[CorpusFile, ...]:
    """Files of a repository at a commit, from rows of name, path there and digest."""
    return tuple(
        CorpusFile(name=name, url=f"{_RAW}/{repository}/{commit}/{path}", sha256=sha256)
        for name, path, sha256 in rows
    )


_TATOEBA = "https://www.manythings.org/anki/deu-eng.zip"

CORPORA = {
    "mt_tatoeba_deu_eng": Corpus(
        title="Tatoeba, English-German sentence pairs, version of 2018-05-13",
        licence="CC BY 2.0 FR; attribution to www.manythings.org/anki and tatoeba.org",
        citation="Tatoeba project, tatoeba.org, as selected by manythings.org/anki",
        files=(
            CorpusFile(
                name="deu.txt",
                url=_TATOEBA,
                member="deu.txt",
                sha256="a79c90b3cd3102decffa49cc00fb6f20023974f2ae5c4782515bebe133fcc07b",
                replaced_upstream=True,
            ),
            CorpusFile(
                name="_about.txt",
                url=_TATOEBA,
                member="_about.txt",
                sha256="df6f57ec7e6d9b31e2b9c8b6a4e0bea4aebe0a408a8e7fb24ae217e37ef4e92f",
                replaced_upstream=True,
            ),
        ),
    ),
    "ner_bc5cdr": Corpus(
        title="BC5CDR, chemicals and diseases in PubMed abstracts",
        licence="CC BY 4.0 (publishers may hold rights in the abstracts)",
        citation="Li et al., BioCreative V CDR task corpus (Database 2016); Crichton et al., A "
        "neural network multi-task learning approach to biomedical NER (BMC Bioinformatics 2017)",
        files=_pinned(
            "cambridgeltl/MTL-Bioinformatics-2016",
            "df0df02fae6dbb87d88ffcf323b9096528f06f84",
            (
                "train.tsv",
                "data/BC5CDR-IOB/train.tsv",
                "b731361c0ed73afd04cc5fdad39afcdfd8f325d6e46c282339185a91d1af4c14",
            ),
            (
                "devel.tsv",
                "data/BC5CDR-IOB/devel.tsv",
                "b909de65c4f7e3c23bb09ad52d654cdc92e96db941abe1a5dcf6f6010c03cff5",
            ),
            (
                "test.tsv",
                "data/BC5CDR-IOB/test.tsv",
                "e41a2843a5fff0cd8d1a88cb147968d61ae29336ca70cddc3d7fb8ff21dfa1e8",
            ),
            (
                "LICENSE.md",
                "LICENSE.md",
                "fd3a263fe19ed8faa9068b43abaebafc02c77897b0c6fc09abc04bb592e5f16e",
            ),
            (
                "README.upstream.md",
                "README.md",
                "264a9bc9484f2d4ca2d65c1fa09bc5434282e85f21c59842ea1a2bfa122925bb",
            ),
        ),
    ),
    "ner_wnut17": Corpus(
        title="WNUT-17, emerging entities in English posts",
        licence="CC BY 4.0 (annotation and release; the posts are by their authors)",
        citation="Derczynski et al., Results of the WNUT2017 shared task on novel and emerging "
        "entity recognition (W-NUT 2017)",
        files=_pinned(
            "leondz/emerging_entities_17",
            "e52a2d2a71ac1a051ca2d532eef28653c5c02603",
            (
                "wnut17train.conll",
                "wnut17train.conll",
                "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
            ),
            (
                "emerging.dev.conll",
                "emerging.dev.conll",
                "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
            ),
            (
                "emerging.test.annotated",
                "emerging.test.annotated",
                "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
            ),
            (
                "README.upstream.md",
                "README.md",
                "7dba67f5d6f7789af3b36af9cbea54b73705f86df100002ae202a9c2f5750157",
            ),
        ),
    ),
    "cls_clinc150": Corpus(
        title="CLINC150, 150 intents in 10 domains",
        licence="CC BY 3.0",
        citation="Larson et al., An evaluation dataset for intent classification and "
        "out-of-scope prediction (EMNLP 2019)",
        files=_pinned(
            "clinc/oos-eval",
            "828f8093932c8fe6ca7936c3d2e52903b1c523de",
            (
                "data_full.json",
                "data/data_full.json",
                "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
            ),
            (
                "domains.json",
                "data/domains.json",
                "b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a",
            ),
            (
                "LICENSE",
                "LICENSE",
                "e6bc9e9c474700b708f568bac9e5a8a9bcb2b1dad53442f5ba449fcb848b8e76",
            ),
            (
                "README.upstream.md",
                "README.md",
                "8a8df26c4de3d25b6c4cff385ca23602c30e4e56828b015206cbc202f6db363a",
            ),
        ),
    ),
    "cls_banking77": Corpus(
        title="BANKING77, 77 intents of bank customers",
        licence="CC BY 4.0",
        citation="Casanueva et al., Efficient intent detection with dual sentence encoders "
        "(NLP4ConvAI 2020)",
        files=_pinned(
            "PolyAI-LDN/task-specific-datasets",
            "57ec275d8078af65b7731c2a98be812d844a6d6b",
            (
                "train.csv",
                "banking_data/train.csv",
                "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b",
            ),
            (
                "test.csv",
                "banking_data/test.csv",
                "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d",
            ),
            (
                "categories.json",
                "banking_data/categories.json",
                "53261da888122daf2d120d925458631d9619e15d82e56052e7a42e535ce32b63",
            ),
            (
                "LICENSE",
                "LICENSE",
                "7e7170e3cebf88a9f60c7b8421418323c09304da1af4d5e90f4da1dc1c8a2661",
            ),
        ),
    ),
    "vocab_bert": Corpus(
        title="WordPiece vocabularies of BERT-base, uncased and cased",
        licence="Apache-2.0 (Google); copies from repositories under Apache-2.0 and MIT",
        citation="Devlin et al., BERT: pre-training of deep bidirectional transformers for "
        "language understanding (NAACL 2019)",
        files=(
            *_pinned(
                "huggingface/tflite-android-transformers",
                "dcd6da1bfb28e3cd6bc83b58a112cdcd3d6cc2fe",
                (
                    "bert-base-uncased-vocab.txt",
                    "bert/src/main/assets/vocab.txt",
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                ),
                (
                    "LICENSE.tflite-android-transformers",
                    "LICENSE",
                    "43070e2d4e532684de521b885f385d0841030efa2b1a20bafb76133a5e1379c1",
                ),
            ),
            *_pinned(
                "microsoft/BlingFire",
                "18e9a19e586095fb60d629fa850fb610d5bca605",
                (
                    "bert-base-cased-vocab.txt",
                    "ldbsrc/bert_base_cased_tok/vocab.txt",
                    "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02",
                ),
                (
                    "LICENSE.BlingFire",
                    "LICENSE",
                    "dea9265341829002e2c23a7372393eb2ed6e26085fb623f38a4ba0af833f30a6",
                ),
            ),
            *_pinned(
                "google-research/bert",
                "eedf5716ce1268e56f0a50264a88cafad334ac61",
                (
                    "LICENSE.google-research-bert",
                    "LICENSE",
                    "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
                ),
            ),
        ),
    ),
}
