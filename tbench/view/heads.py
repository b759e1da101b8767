"""What is said of everything that a viewer sends: what a browser may do with it, and that it asks again."""

from __future__ import annotations

from tbench.view.live_page import LIVE_POLICY


def head_lines(content_type: str) -> dict[str, str]:
    """The lines at the head of a response."""
    return {
        "Content-Type": content_type,
        "Content-Security-Policy": f"{LIVE_POLICY}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
