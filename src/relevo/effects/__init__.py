"""Effects: outward acts (a charge, a mail, a webhook) recorded with the data, performed after the commit, once.

Declare one with ``@effect``, record it with ``once`` in any transaction, and run ``relevo consume`` or
``relevo effects run`` somewhere that has the declaration.
"""

from relevo.effects.declaring import EFFECTS, Effect, EffectRequest, Registry, effect
from relevo.effects.mail import SmtpServer, email
from relevo.effects.recording import Effects, once
from relevo.effects.runner import EffectRunner
from relevo.effects.signing import sign, verify_signature
from relevo.effects.verdicts import Done, EffectRefused, NotDone, Unknown
from relevo.effects.webhook import webhook
from relevo.loggers import guard

guard()

__all__ = [
    "EFFECTS",
    "Done",
    "Effect",
    "EffectRefused",
    "EffectRequest",
    "EffectRunner",
    "Effects",
    "NotDone",
    "Registry",
    "SmtpServer",
    "Unknown",
    "effect",
    "email",
    "once",
    "sign",
    "verify_signature",
    "webhook",
]
