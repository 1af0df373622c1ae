"""gdb shows headwise's shapes, views and tensors by their extents and elements:

    (gdb) source <checkout>/tools/debug/headwise_printers.py     or the same line in ~/.gdbinit
    (gdb) print x
    $1 = Tensor<float, 2> [2, 3] = {{1, 2, 3}, {4, 5, 6}}

Elements are read from the program's memory where they lie; a strided view names each by its index.
`set print elements N` limits how many are shown, as for arrays. Nothing is ever called or written.
"""

import itertools
import re

import gdb
import gdb.printing


def extents_of(shape):
    """The numbers of a headwise::Shape."""
    extents = shape["extents"]
    last = extents.type.strip_typedefs().range()[1]
    return [int(extents[r]) for r in range(last + 1)]


def bracketed(numbers):
    return "[" + ", ".join(str(n) for n in numbers) + "]"


def as_in(value):
    """The In<T, R> that a view or a tensor is derived from: the first base of the first base .."""
    while True:
        bases = [field for field in value.type.strip_typedefs().fields() if field.is_base_class]
        if not bases:
            return value
        value = value[bases[0]]


def dense(extents, strides):
    step = 1
    for extent, stride in zip(reversed(extents), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


class ShapePrinter:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return "Shape " + bracketed(extents_of(self.value))


class TensorPrinter:
    """A view or a tensor: rows in braces where they are dense, else (i, j) = element."""

    def __init__(self, value):
        if value.type.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
            value = value.referenced_value()
        name = str(value.type.strip_typedefs().unqualified())
        self.name = re.sub(r"^headwise::(v\d+_\d+::)?", "", name)
        base = as_in(value)
        self.data = base["data_"]
        self.extents, self.strides = extents_of(base["shape_"]), extents_of(base["strides_"])
        self.empty = int(self.data) == 0 or 0 in self.extents
        self.dense = dense(self.extents, self.strides)

    def to_string(self):
        if int(self.data) == 0 and not any(self.extents):
            return self.name + " absent"
        text = self.name + " " + bracketed(self.extents)
        return text if self.dense or self.empty else text + " strides " + bracketed(self.strides)

    def children(self):
        if self.empty:
            return iter(())
        return self.rows() if self.dense else self.elements()

    def rows(self):
        """Along the first axis: a number, or an array of as many dimensions as are left."""
        kind = self.data.type.target().unqualified()
        for extent in reversed(self.extents[1:]):
            kind = kind.array(extent - 1)
        first = self.data.cast(kind.pointer())
        for n in range(self.extents[0]):
            yield str(n), (first + n).dereference()

    def elements(self):
        for index in itertools.product(*(range(extent) for extent in self.extents)):
            offset = sum(i * stride for i, stride in zip(index, self.strides))
            yield "(" + ", ".join(map(str, index)) + ")", (self.data + offset).dereference()

    def display_hint(self):
        return "array" if self.dense else None


def register():
    printers = gdb.printing.RegexpCollectionPrettyPrinter("headwise")
    space = r"^headwise::(v\d+_\d+::)?"
    printers.add_printer("Shape", space + r"Shape<\d+>$", ShapePrinter)
    printers.add_printer("Tensor", space + r"(In|Out|InOut|TensorView|Tensor)<.*>$", TensorPrinter)
    gdb.printing.register_pretty_printer(None, printers, replace=True)


register()
