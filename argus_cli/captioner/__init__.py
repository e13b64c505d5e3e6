"""The one place where pixels become tensors and ids become text.

    captioner = load("smolvlm-256m")
    print(captioner.caption("photo.jpg").caption)

core holds the model, picture and film what is asked about one picture or one film, together what is
asked about several pictures at once, answer the text as it is written, template the prompt's
placeholders, wording what a style makes of the answer.
"""

from argus_cli.captioner.core import Captioner, load
from argus_cli.captioner.film import FilmRequest, FilmStream
from argus_cli.captioner.picture import Request, Stream

__all__ = ["Captioner", "FilmRequest", "FilmStream", "Request", "Stream", "load"]
