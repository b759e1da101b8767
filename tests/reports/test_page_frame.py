"""The frame of all pages: values as HTML."""

from __future__ import annotations

import pytest
from markupsafe import Markup, escape
from site_series import HOSTILE

from reports.page_frame import _environment, html_text, macros
from reports.trial.page_text import ShownText
from tbench.scores.summary import Status


@pytest.mark.parametrize("value", ["plain", HOSTILE, "a&b", 7, True, 0.5, None, Status.PASS, Markup("<b>"), ["<"]])
def test_a_value_is_escaped_as_markupsafe_does_it(value: object) -> None:
    assert html_text(value) == str(escape(value))


def test_templates_escape_what_they_show_by_that_function() -> None:
    code = _environment().get_template("trial.html.j2").root_render_func
    assert "escape" in code.__code__.co_names
    assert code.__globals__["escape"] is html_text


def test_macros_of_another_template_escape_too() -> None:
    shown = macros("trial_parts.html.j2").long_text(ShownText(HOSTILE), "told.0", "code")
    assert type(shown) is Markup
    assert f'<pre class="code">{escape(HOSTILE)}</pre>' in shown
