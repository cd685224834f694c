# SPDX-License-Identifier: Apache-2.0
"""Bars on a logarithmic scale as SVG: the frame of key_range_plot.py and scale_axis_plot.py."""
import math


class LogBars:
    WIDTH, HEIGHT, LEFT, RIGHT, TOP = 860, 340, 56, 12, 34

    def __init__(self, values, bottom):
        """The scale goes from the power of ten below all values to the one above."""
        self.bottom, self.out = bottom, []
        self.low = 10 ** math.floor(math.log10(min(values)))
        self.high = 10 ** math.ceil(math.log10(max(values)))
        self.inner = self.WIDTH - self.LEFT - self.RIGHT  # width of all bars

    def y_of(self, value):
        part = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self.HEIGHT - self.bottom - part * (self.HEIGHT - self.TOP - self.bottom)

    def text(self, x, y, what, anchor="middle", size=11):
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
                        f'font-size="{size}">{what}</text>')

    def below(self, x, what):
        """Names a bar or a group of bars."""
        self.text(x, self.HEIGHT - self.bottom + 15, what)

    def level(self, x, x_end, value, colour, width="1"):
        y = self.y_of(value)
        self.out.append(f'<line x1="{x}" x2="{x_end}" y1="{y:.1f}" y2="{y:.1f}" '
                        f'stroke="{colour}" stroke-width="{width}"/>')

    def grid(self, colour, between=None):
        """Lines at powers of ten, and, with a colour for them, between them."""
        value = self.low
        while value <= self.high * 1.001:
            for k in range(1, 10 if between else 2):
                if value * k <= self.high * 1.001:
                    self.level(self.LEFT, self.WIDTH - self.RIGHT, value * k,
                               colour if k == 1 else between)
            self.text(self.LEFT - 6, self.y_of(value) + 4, f"{value:g}", "end")
            value *= 10

    def bar(self, x, width, value, colour):
        y = self.y_of(value)
        self.out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                        f'height="{self.HEIGHT - self.bottom - y:.1f}" fill="{colour}"/>')

    def legend(self, x, what, colour):
        self.out.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{colour}"/>')
        self.text(x + 15, 17, what, "start", 12)

    def svg(self, comments=()):
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
            f'width="{self.WIDTH}" height="{self.HEIGHT}" font-family="sans-serif">',
            *(f"<!-- {c} -->" for c in comments),
            f'<rect width="{self.WIDTH}" height="{self.HEIGHT}" fill="white"/>', *self.out,
            "</svg>"])
