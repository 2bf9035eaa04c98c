"""Render the pages on which people log in and choose their namespace."""

from __future__ import annotations

from drumline_cli.markup import Markup, element, joined
from drumline_console.ui.parts import document, post_form, section


def account(sentence: str, *, up: str, reachable: str | None, logged_in: bool = False) -> str:
    """Render the page to log in and out.

    Args:
        sentence: reason for showing the page.
        up: path to the overview.
        reachable: address to open instead. None: cookies are safe at this address.
        logged_in: whether the browser has a token.
    """
    hint = (
        "A token of yours for this cluster, such as the output of kubectl create token ACCOUNT."
        " The page has the rights of the token. The browser keeps the token for eight hours, and"
        " sends it only to this page and only over HTTPS. The page does not store it."
    )
    content = [
        element("h1", "Account" if logged_in else "Log in"),
        element("p", sentence, class_="lead", role="alert"),
    ]
    if reachable is not None:
        content.append(_elsewhere(reachable))
    else:
        content += [element("p", hint), _login(up)]
    if logged_in:
        log_out = post_form(f"{up}logout", element("button", "Log out"))
        content += [section("Namespace", _namespace(up)), section("Log out", log_out)]
    return document("Log in", joined(*content), up=up, script=None)


def choose_namespace(sentence: str) -> str:
    """Render the choice of a namespace, for users who may not list jobs of all namespaces."""
    content = (
        element("h1", "Which namespace is yours?"),
        element("p", sentence, class_="lead", role="alert"),
        _namespace(""),
        element("p", element("a", "Log in as another user", href="login")),
    )
    return document("Which namespace is yours?", joined(*content), up="", script=None)


def _elsewhere(reachable: str) -> Markup:
    why = (
        " instead: a browser sends a cookie of this address to every port of the machine, and so"
        " to programs of other users. With a kubeconfig the command drumline ui is simpler."
    )
    return element("p", "Open ", element("strong", reachable), why)


def _login(up: str) -> Markup:
    token = element(
        "input", type="password", name="token", required="", autocomplete="off", maxlength=3800
    )
    return post_form(
        f"{up}login",
        element("label", "Token ", token),
        element("label", "Namespace, if you may not read all ", _namespace_field()),
        element("button", "Log in"),
    )


def _namespace(up: str) -> Markup:
    field = element("label", "Only jobs of ", _namespace_field())
    return post_form(f"{up}namespace", field, element("button", "Choose it"))


def _namespace_field() -> Markup:
    return element("input", name="namespace", maxlength=63, spellcheck="false")
