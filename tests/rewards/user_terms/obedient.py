"""A term that does what the completion says."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from pipeline.params import Section
from pipeline.rewards.completion import Completion, Unscored


class Params(Section):
    factor: float = 1.0


def score(completion: Completion, params: Params) -> Any:
    match completion.completion_text:
        case "raise":
            raise ValueError("as told")
        case "nan":
            return math.nan
        case "inf":
            return -math.inf
        case "text":
            return "1.0"
        case "huge":
            return 10**400
        case "half":
            return Unscored("half of a pair: \ud800")
        case "none":
            return None
        case "true":
            return True
        case "die":
            os.abort()
        case "leave":
            os._exit(0)
        case "sleep":
            time.sleep(60)
    return params.factor * (2.0 if completion.is_correct else 1.0)
