"""The greenhouse panel: a full-screen program that seals a plan. Only its compiled form is in the image."""

import curses
import hashlib
import hmac
import os
import sys

PLAN = "/app/plan.sealed"
LAMPS_NEED_VENTS = 30

TITLES = ["North bed", "South bed", "Irrigation", "Vents", "Lamps"]
CHOICES = [
    [f"{degrees}" for degrees in range(12, 31)],
    [f"{degrees}" for degrees in range(12, 31)],
    ["off", "mist", "drip", "flood"],
    [f"{percent}" for percent in range(0, 101, 10)],
    ["off", "on"],
]
UNITS = [" C", " C", "", " %", ""]
BUTTONS = ["Seal the plan", "Leave"]
LEFT, RIGHT = (curses.KEY_LEFT, ord("h")), (curses.KEY_RIGHT, ord("l"))
UP, DOWN = (curses.KEY_UP, curses.KEY_BTAB, ord("k")), (curses.KEY_DOWN, ord("\t"), ord("j"))
ENTER = (curses.KEY_ENTER, ord("\n"), ord("\r"))


class Panel:
    def __init__(self, screen: "curses.window") -> None:
        self.screen = screen
        self.row = 0
        self.picked = [6, 9, 0, 1, 0]
        self.keys = 0
        self.message = "Choose a line with Up and Down, change it with Left and Right."

    def value(self, row: int) -> str:
        return CHOICES[row][self.picked[row]]

    def key(self) -> int:
        while (key := self.screen.getch()) == curses.KEY_RESIZE:
            self.draw()
        if key == -1:
            sys.exit(1)
        self.keys += 1
        return key

    def put(self, y: int, x: int, text: str, attributes: int = 0) -> None:
        try:
            self.screen.addstr(y, x, text, attributes)
        except curses.error:
            pass  # the terminal is too small for this line

    def draw(self) -> None:
        self.screen.erase()
        self.put(1, 4, "GREENHOUSE PANEL", curses.A_BOLD)
        self.put(2, 4, "=" * 52)
        for row, title in enumerate(TITLES):
            chosen = row == self.row
            text = f"{'>' if chosen else ' '} {title:<14} <  {self.value(row) + UNITS[row]:^9}  >"
            self.put(4 + row, 4, text, curses.A_REVERSE if chosen else 0)
        for number, button in enumerate(BUTTONS):
            chosen = self.row == len(TITLES) + number
            self.put(10 + number, 4, f"{'>' if chosen else ' '} [ {button} ]", curses.A_REVERSE if chosen else 0)
        self.put(13, 4, self.message)
        self.put(15, 4, "arrows or h j k l: move and change   Enter: press a button   q: leave")
        self.screen.refresh()

    def change(self, step: int) -> None:
        row = self.row
        if row >= len(TITLES):
            return
        picked = self.picked[row] + step
        self.message = ""
        if not 0 <= picked < len(CHOICES[row]):
            self.message = f"{TITLES[row]}: that is as far as it goes."
            return
        if row == 4 and picked == 1 and int(self.value(3)) < LAMPS_NEED_VENTS:
            self.message = f"The lamps are hot: open the vents to {LAMPS_NEED_VENTS} % first."
            return
        self.picked[row] = picked
        if row == 3 and int(self.value(3)) < LAMPS_NEED_VENTS and self.picked[4]:
            self.picked[4] = 0
            self.message = "The vents are too far closed: lamps switched off."

    def confirmed(self) -> bool:
        yes = False
        while True:
            self.draw()
            self.put(6, 14, "+--------------------------------+", curses.A_BOLD)
            self.put(7, 14, "|  Seal the plan as it is shown? |", curses.A_BOLD)
            buttons = "  No        [ Yes ]" if yes else "[ No ]        Yes  "
            self.put(8, 14, f"|      {buttons}       |", curses.A_BOLD)
            self.put(9, 14, "+--Left/Right choose, Enter------+", curses.A_BOLD)
            self.screen.refresh()
            key = self.key()
            if key in LEFT:
                yes = False
            elif key in RIGHT:
                yes = True
            elif key in ENTER:
                return yes
            elif key in (27, ord("q")):
                return False

    def seal(self) -> None:
        names = ["north", "south", "irrigation", "vents", "lamps"]
        lines = [f"{name}={self.value(row)}\n" for row, name in enumerate(names)] + [f"keys={self.keys}\n"]
        text = "".join(lines).encode()
        wax = bytes(n * 73 % 251 ^ len(title) for title in TITLES for n in range(40, 56))
        stamp = hmac.new(hashlib.sha256(wax).digest(), text, "sha256").hexdigest()
        with open(PLAN + ".new", "wb") as plan:
            plan.write(text + f"seal={stamp}\n".encode())
        os.replace(PLAN + ".new", PLAN)
        self.message = f"Sealed: {PLAN}"

    def run(self) -> None:
        while True:
            self.draw()
            key = self.key()
            if key in UP:
                self.row = max(0, self.row - 1)
            elif key in DOWN:
                self.row = min(len(TITLES) + len(BUTTONS) - 1, self.row + 1)
            elif key in LEFT:
                self.change(-1)
            elif key in RIGHT:
                self.change(1)
            elif key == ord("q") or (key in ENTER and self.row == 6):
                return
            elif key in ENTER and self.row == 5:
                if self.confirmed():
                    self.seal()
                else:
                    self.message = "Not sealed."


def main(screen: "curses.window") -> None:
    try:
        curses.curs_set(0)
    except curses.error:
        pass
    Panel(screen).run()


if __name__ == "__main__":
    if len(sys.argv) > 1 or not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.exit("greenhouse: this is a full-screen program without options; start it in a terminal")
    os.environ.setdefault("TERM", "xterm")
    os.environ.setdefault("ESCDELAY", "50")
    try:
        curses.wrapper(main)
    except KeyboardInterrupt:
        sys.exit(130)
