"""Sphinx: pages in Markdown, tutorials that are executed, an API reference from docstrings."""

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

project = "collapipe_jax"
author = "The collapipe_jax developers"
version = release = metadata.version("collapipe-jax")
copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["examples", "templates"]
suppress_warnings = [
    "misc.highlighting_failure",  # of blocks in languages without colours, such as csv
    "mystnb.unknown_mime_type",
]

html_theme = "furo"
html_title = "collapipe_jax"
html_show_sphinx = False
html_copy_source = False
html_static_path = []

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4  # the anchors of GitHub, so that one link serves both
nb_execution_mode = "force"  # `-D nb_execution_mode=cache` while writing
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries = False

mathjax_path = "mathjax/tex-chtml-full.js"
mathjax3_config = {"options": {"enableMenu": False}}

# Tutorials call the programs of this environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def copy_mathjax(app):
    """Copy MathJax from its wheel, so that pages load nothing from elsewhere."""
    wheel = metadata.distribution("sphinx-mathjax-offline")
    source = Path(str(wheel.locate_file("sphinx-mathjax-offline/static/mathjax")))
    target = Path(app.outdir) / "_static" / "mathjax"
    fonts = "output/chtml/fonts/woff-v2"
    shutil.copytree(source / fonts, target / fonts, dirs_exist_ok=True)
    shutil.copy(source / "tex-chtml-full.js", target)


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", copy_mathjax)
