"""Typed payloads and results: what pydantic validated comes back equal, or is refused."""

from __future__ import annotations

import dataclasses
import math
import re
import uuid
from collections import OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, NotRequired, Required, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    model_validator,
)
from pydantic_core import core_schema

from tests.handlers.test_codecs import JSON, STORABLE_TEXT
from workhorse.errors import ConfigurationError, UnstorableValueError, ValueTooLargeError
from workhorse.handlers.codecs import codec_for
from workhorse.handlers.exactness import difference
from workhorse.handlers.models import ModelCodec

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
CAP = 1024 * 1024
WHAT = "payload of task 'orders.ship'"


def encode(annotation: object, value: object) -> str:
    return codec_for(annotation, "the payload of ship").encode(WHAT, value, cap=CAP)


def trip(annotation: object, value: object) -> Any:
    codec = codec_for(annotation, "the payload of ship")
    assert isinstance(codec, ModelCodec)
    return codec.decode(WHAT, codec.encode(WHAT, value, cap=CAP))


def refused(annotation: object, value: object) -> UnstorableValueError:
    with pytest.raises(UnstorableValueError) as raised:
        encode(annotation, value)
    assert str(raised.value).startswith(f"{WHAT}: {raised.value.path} ")
    return raised.value


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Sign(Enum):
    PLUS = "+"
    MINUS = -1


@dataclasses.dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


class Line(BaseModel):
    sku: str
    count: int = 1
    price: Money | None = None


class Order(BaseModel):
    id: uuid.UUID
    at: datetime
    day: date
    hour: time
    lines: list[Line]
    colours: set[Colour]
    sign: Sign
    level: Level
    weight: float
    big: int
    blob: bytes
    pair: tuple[int, str]
    names: dict[int, str]
    kind: Literal["a", 1]
    path: PurePosixPath
    rest: timedelta
    free: Any = None


OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
INSTANTS = st.datetimes(timezones=st.just(UTC) | OFFSETS) | st.datetimes()
MONEY = st.builds(
    Money, amount=st.decimals(allow_nan=False, allow_infinity=False), currency=STORABLE_TEXT
)
LINES = st.builds(Line, sku=STORABLE_TEXT, count=st.integers(), price=st.none() | MONEY)
ORDERS = st.builds(
    Order,
    id=st.uuids(),
    at=INSTANTS,
    day=st.dates(),
    hour=st.times(timezones=st.none() | st.just(UTC)),
    lines=st.lists(LINES, max_size=3),
    colours=st.sets(st.sampled_from(Colour)),
    sign=st.sampled_from(Sign),
    level=st.just(Level.LOW),
    weight=st.floats(allow_nan=False, allow_infinity=False),
    big=st.integers(-(2**200), 2**200),
    blob=STORABLE_TEXT.map(str.encode),
    pair=st.tuples(st.integers(), STORABLE_TEXT),
    names=st.dictionaries(st.integers(), STORABLE_TEXT, max_size=3),
    kind=st.sampled_from(["a", 1]),
    path=st.just(PurePosixPath("a/b")),
    rest=st.timedeltas(),
    free=JSON,
)


@given(ORDERS)
def test_case_8_a_model_comes_back_equal_whatever_its_fields_hold(order: Order) -> None:
    back = trip(Order, order)
    assert back == order
    assert difference(order, back) is None


@given(st.lists(LINES) | st.dictionaries(STORABLE_TEXT, MONEY))
def test_models_inside_plain_containers_come_back_equal(value: object) -> None:
    assert trip(list[Line] | dict[str, Money], value) == value


@given(st.from_type(Money))
def test_a_dataclass_comes_back_equal_or_is_refused(money: Money) -> None:
    """Nothing checked its fields when it was made: what is no number is refused here."""
    try:
        back = trip(Money, money)
    except UnstorableValueError:
        assert not money.amount.is_finite() or not money.currency.isprintable() or True
        assert not _storable(money)
    else:
        assert difference(money, back) is None


def _storable(money: Money) -> bool:
    if not money.amount.is_finite() or "\0" in money.currency:
        return False
    return not re.search("[\ud800-\udfff]", money.currency)


# -- numbers -------------------------------------------------------------------------------------


class Metric(BaseModel):
    loss: float
    history: list[float] = []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e400])
def test_case_8_a_float_that_json_has_not_is_refused_and_not_turned_into_null(
    number: float,
) -> None:
    assert refused(Metric, Metric(loss=number)).path == "$.loss"
    assert refused(Metric, Metric(loss=0, history=[1, number])).path == "$.history[1]"


@pytest.mark.parametrize("way", ["null", "strings", "constants"])
def test_case_8_no_setting_of_a_model_lets_such_a_float_pass(way: Any) -> None:
    class Loose(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan=way)
        loss: float

    assert refused(Loose, Loose(loss=math.nan)).path == "$.loss"


def test_case_8_decimals_and_large_integers_keep_every_digit() -> None:
    class Numbers(BaseModel):
        big: int
        exact: Decimal

    numbers = Numbers(big=2**70, exact=Decimal("1.10000000000000000000000000000001"))
    back = trip(Numbers, numbers)
    assert (back.big, str(back.exact)) == (2**70, str(numbers.exact))
    assert str(trip(Decimal, Decimal("1.00"))) == "1.00"
    assert str(trip(Decimal, Decimal("1E+5"))) == "1E+5"


def test_case_8_what_hides_in_any_is_refused_with_its_path() -> None:
    class Loose(BaseModel):
        data: Any

    for value in (datetime(2026, 1, 1, tzinfo=UTC), (1, 2), {1}, Decimal(1), b"x", Level.LOW):
        error = refused(Loose, Loose(data={"deep": [value]}))
        assert error.path == "$.data.deep[0]"
    assert trip(Loose, Loose(data={"deep": [1, None]})).data == {"deep": [1, None]}


# -- instants ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instant",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=UTC),
    ],
)
def test_case_9_an_instant_of_any_zone_comes_back_to_the_microsecond(instant: datetime) -> None:
    back = trip(datetime, instant)
    assert back.replace(tzinfo=None, fold=0) == instant.replace(tzinfo=None, fold=0)
    assert back.utcoffset() == instant.utcoffset()


def test_an_offset_that_its_text_cannot_say_is_refused() -> None:
    odd = datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=1)))
    assert refused(datetime, odd).path == "$"


def test_case_8_a_naive_datetime_in_a_typed_field_stays_naive() -> None:
    naive = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - that is the case
    assert trip(datetime, naive) == naive
    assert trip(datetime, naive).tzinfo is None


class OtherDatetime(datetime):
    """As the datetimes of libraries that freeze or dress up time."""


def test_a_datetime_of_a_subclass_comes_back_as_the_same_instant() -> None:
    given = OtherDatetime(2026, 1, 1, tzinfo=UTC)
    assert trip(datetime, given) == given


# -- what would be lost --------------------------------------------------------------------------


class Base(BaseModel):
    id: int


class Derived(Base):
    note: str


class Holder(BaseModel):
    base: Base


def test_a_subclass_that_would_come_back_as_its_base_is_refused() -> None:
    error = refused(Holder, Holder(base=Derived(id=1, note="x")))
    assert error.path == "$.base"
    assert "Derived and would come back as a" in str(error)
    assert refused(Base, Derived(id=1, note="x")).path == "$"


def test_fields_that_are_excluded_or_hidden_are_refused() -> None:
    class Excluded(BaseModel):
        kept: int
        lost: str = Field(default="", exclude=True)

    class Needed(BaseModel):
        lost: str = Field(exclude=True)

    class Hidden(BaseModel):
        password: SecretStr

    assert trip(Excluded, Excluded(kept=1)).kept == 1
    assert refused(Excluded, Excluded(kept=1, lost="x")).path == "$.lost"
    assert "would not be read back" in str(refused(Needed, Needed(lost="x")))
    error = refused(Hidden, Hidden(password=SecretStr("hunter2")))
    assert error.path == "$.password"
    assert "hunter2" not in str(error)


def test_a_serializer_that_rounds_is_refused() -> None:
    class Rounded(BaseModel):
        at: float

        @field_serializer("at")
        def round(self, value: float) -> int:
            return int(value)

    assert trip(Rounded, Rounded(at=2.0)).at == 2.0
    assert refused(Rounded, Rounded(at=2.5)).path == "$.at"


def test_a_serializer_that_fails_is_refused_and_its_error_kept() -> None:
    class Broken(BaseModel):
        at: float

        @field_serializer("at")
        def fail(self, value: float) -> int:
            raise KeyError(value)

    error = refused(Broken, Broken(at=12345.5))
    assert "cannot be written as JSON" in str(error)
    assert "12345" not in str(error)
    assert error.__cause__ is not None


def test_aliases_are_written_as_they_are_read() -> None:
    class Aliased(BaseModel):
        order_id: int = Field(alias="orderId")

    class Crossed(BaseModel):
        order_id: int = Field(validation_alias="in", serialization_alias="out")

    assert encode(Aliased, Aliased(orderId=1)) == '{"orderId":1}'
    assert trip(Aliased, Aliased(orderId=1)).order_id == 1
    assert "aliases" in str(refused(Crossed, Crossed(**{"in": 1})))


def test_computed_fields_are_not_stored() -> None:
    class Square(BaseModel):
        model_config = ConfigDict(extra="forbid")
        side: int

        @computed_field  # type: ignore[prop-decorator]
        @property
        def area(self) -> int:
            return self.side**2

    assert encode(Square, Square(side=2)) == '{"side":2}'
    assert trip(Square, Square(side=2)).area == 4


def test_extra_fields_of_a_model_that_allows_them_come_back() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    assert trip(Open, Open(a=[1])) == Open(a=[1])
    assert refused(Open, Open(a=(1,))).path == "$.a"


def test_private_attributes_are_no_data() -> None:
    class Cached(BaseModel):
        id: int
        _lock: object = PrivateAttr(default_factory=object)

    assert trip(Cached, Cached(id=1)).id == 1


def test_json_fields_and_root_models_come_back() -> None:
    class Wrapped(BaseModel):
        data: Json[list[int]]

    class Ids(RootModel[list[int]]):
        pass

    assert trip(Wrapped, Wrapped(data="[1, 2]")).data == [1, 2]
    assert trip(Ids, Ids([1, 2])).root == [1, 2]


def test_a_strict_model_is_read_from_its_json() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime
        ids: tuple[int, ...]
        colours: frozenset[Colour]

    given = Strict(at=datetime(2026, 1, 1, tzinfo=UTC), ids=(1, 2), colours=frozenset([Colour.RED]))
    assert trip(Strict, given) == given


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


def test_generic_models_come_back() -> None:
    assert trip(Box[datetime], Box[datetime](content=datetime(2026, 1, 1, tzinfo=UTC)))
    with pytest.raises(UnstorableValueError):
        encode(Box[int], {"content": "x"})


# -- dataclasses ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Parcel:
    weight: int
    parts: list[Money] = dataclasses.field(default_factory=list)


@pydantic.dataclasses.dataclass
class Checked:
    at: datetime


@dataclasses.dataclass
class Initialised:
    given: dataclasses.InitVar[int]
    derived: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, given: int) -> None:
        self.derived = given


@dataclasses.dataclass(eq=False)
class Identity:
    id: int


def test_dataclasses_come_back() -> None:
    assert trip(Parcel, Parcel(1, [Money(Decimal("1.5"))])) == Parcel(1, [Money(Decimal("1.5"))])
    assert trip(Checked, Checked(datetime(2026, 1, 1, tzinfo=UTC)))
    assert trip(Identity, Identity(7)).id == 7
    assert trip(Parcel, {"weight": 1}) == Parcel(1)


def test_a_dataclass_with_a_field_of_another_type_is_refused() -> None:
    """Nobody checked it when it was made."""
    assert refused(Parcel, Parcel("heavy")).path == "$.weight"  # type: ignore[arg-type]
    assert refused(Parcel, Parcel("5")).path == "$.weight"  # type: ignore[arg-type]
    assert refused(Initialised, Initialised(5)).path.startswith("$")


def test_a_model_changed_to_what_its_fields_refuse_is_refused() -> None:
    line = Line(sku="a")
    line.count = "many"  # type: ignore[assignment]
    assert refused(Line, line).path == "$.count"


# -- TypedDicts ----------------------------------------------------------------------------------


class Address(TypedDict):
    street: str
    since: NotRequired[date]


class Partial(TypedDict, total=False):
    id: Required[int]
    at: datetime
    address: Address


class Extended(Partial):
    lines: list[Address] | None
    tags: Annotated[list[str], Field(max_length=2)]
    kind: Literal["a"]


ADDRESSES = st.fixed_dictionaries({"street": STORABLE_TEXT}, optional={"since": st.dates()})
EXTENDED = st.fixed_dictionaries(
    {
        "id": st.integers(),
        "lines": st.none() | st.lists(ADDRESSES, max_size=2),
        "tags": st.lists(STORABLE_TEXT, max_size=2),
        "kind": st.just("a"),
    },
    optional={"at": INSTANTS, "address": ADDRESSES},
)


@given(EXTENDED)
def test_typed_dicts_come_back_equal(value: dict[str, Any]) -> None:
    assert trip(Extended, value) == value


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({}, "$.id", "Field required"),
        ({"id": 1, "address": {}}, "$.address.street", "Field required"),
        ({"id": "x"}, "$.id", "valid integer"),
        ({"id": 1, "more": 2}, "$.more", "would be dropped"),
        ({"id": 1, "address": {"street": "", "zip": "1"}}, "$.address.zip", "would be dropped"),
    ],
)
def test_typed_dicts_take_what_they_name_and_nothing_else(
    value: dict[str, Any], path: str, problem: str
) -> None:
    error = refused(Partial, value)
    assert error.path == path
    assert problem in str(error)


def test_keys_that_a_typed_dict_does_not_name_do_not_end_an_activation() -> None:
    """An older worker can meet a newer producer's key, as it can with a model."""
    codec = codec_for(list[Address], "the payload of ship")
    assert codec.decode(WHAT, '[{"street":"a","zip":"1"}]') == [{"street": "a"}]
    with pytest.raises(UnstorableValueError) as raised:
        codec.encode(WHAT, [{"street": "a"}, {"street": "a", "zip": "1"}], cap=CAP)
    assert raised.value.path == "$[1].zip"


def test_a_model_made_of_a_dict_treats_other_keys_as_it_says() -> None:
    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")
        id: int

    assert encode(Base, {"id": 1, "more": 2}) == '{"id":1}'
    assert refused(Closed, {"id": 1, "more": 2}).path == "$.more"


def test_typed_dicts_keep_their_pydantic_configuration() -> None:
    class Closed(TypedDict):
        __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
        id: date

    codec = codec_for(Closed, "the payload of ship")
    with pytest.raises(UnstorableValueError) as raised:
        codec.decode(WHAT, '{"id":"2026-01-01","more":1}')
    assert raised.value.path == "$.more"


class Tree(TypedDict):
    children: list[Tree]


def test_a_typed_dict_that_holds_itself_works_or_says_what_to_do() -> None:
    try:
        back = trip(Tree, {"children": [{"children": []}]})
    except ConfigurationError as error:
        assert "typing_extensions" in str(error)  # noqa: PT017 - either is right, by version
    else:
        assert back == {"children": [{"children": []}]}


# -- containers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[int, ...], (1, 2)),
        (tuple[datetime, str], (datetime(2026, 1, 1, tzinfo=UTC), "a")),
        (set[int], {1, 2}),
        (frozenset[date], frozenset([date(2026, 1, 1)])),
        (deque[int], deque([1, 2])),
        (dict[int, float], {1: 1.5}),
        (dict[date, int], {date(2026, 1, 1): 1}),
        (defaultdict[str, int], defaultdict(int, {"a": 1})),
        (OrderedDict[str, int], OrderedDict(a=1)),
        (bytes, b"abc"),
        (uuid.UUID, uuid.UUID(int=1)),
        (Colour, Colour.RED),
        (timedelta, timedelta(days=-1, microseconds=1)),
        (Annotated[int, Field(gt=0)], 5),
        (Colour | None, None),
        (list[bytes | int], [b"a", 1]),
    ],
)
def test_other_types_come_back_in_value_and_type(annotation: object, value: object) -> None:
    back = trip(annotation, value)
    assert back == value
    assert type(back) is type(value)


def test_bytes_that_are_no_text_are_refused() -> None:
    assert "cannot be written" in str(refused(bytes, b"\xff"))
    assert "cannot be written" in str(refused(list[bytes], [b"\xff"]))


def test_a_key_that_would_swallow_another_is_refused() -> None:
    assert refused(dict[int | str, int], {1: 1, "1": 2}).path.startswith("$")


def test_text_that_postgresql_cannot_hold_is_refused_inside_models_too() -> None:
    assert refused(Line, Line(sku="a\0")).path == "$.sku"
    with pytest.raises(UnstorableValueError):
        encode(Line, {"sku": "\ud800"})


def test_a_value_that_holds_itself_is_refused() -> None:
    class Node(BaseModel):
        next: Node | None = None

    node = Node()
    node.next = node
    refused(Node, node)


def test_case_18_generators_and_coroutines_are_no_lists() -> None:
    async def stream() -> Any:
        yield 1

    async def coroutine() -> None: ...

    for value in ((number for number in range(3)), stream(), coroutine()):
        assert "hand over what it makes" in str(refused(list[date], value))


def test_case_7_a_typed_value_above_the_cap_is_refused_with_its_size() -> None:
    with pytest.raises(ValueTooLargeError, match=WHAT) as raised:
        encode(Line, Line(sku="x" * CAP))
    assert raised.value.cap == CAP


# -- messages ------------------------------------------------------------------------------------


def _refuse(text: str) -> str:
    if text != "known":
        raise ValueError(f"no such account: {text}")
    return text


class Account(BaseModel):
    number: Annotated[str, AfterValidator(_refuse)]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Picky(BaseModel):
    a: int = 0

    @model_validator(mode="after")
    def check(self) -> Picky:
        assert self.a != 13, f"{self.a} is unlucky"
        return self


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Account, {"number": "hunter2"}, "$.number"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "hunter2"}, "$"),
        (list[uuid.UUID], ["hunter2"], "$[0]"),
        (list[date], ["hunter2"], "$[0]"),
        (Literal["a"], "hunter2", "$"),
        (dict[str, Colour], {"x": "hunter2"}, "$.x"),
        (list[int | bytes], ["hunter2", object()], "$[1]"),
        (list[Picky], [{"a": 13}], "$[0]"),
    ],
)
def test_an_error_names_the_path_and_never_the_value(
    annotation: object, value: object, path: str
) -> None:
    error = refused(annotation, value)
    assert error.path == path
    assert not re.search("hunter2|13", str(error))
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_an_error_names_the_first_of_several_and_their_number() -> None:
    error = refused(list[date], ["a", "b", "c"])
    assert error.path == "$[0]"
    assert "(and 2 more)" in str(error)


def test_an_error_on_the_way_back_names_the_path_and_never_the_value() -> None:
    codec = codec_for(Holder, "the payload of ship")
    with pytest.raises(UnstorableValueError) as raised:
        codec.decode(WHAT, '{"base":{"id":"hunter2"}}')
    assert raised.value.path == "$.base.id"
    assert "hunter2" not in str(raised.value)
    with pytest.raises(UnstorableValueError, match="JSON"):
        codec.decode(WHAT, "{")


def test_an_error_inside_a_model_instance_is_found_by_its_attributes() -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(revalidate_instances="always")
        id: int

    class Outer(BaseModel):
        model_config = ConfigDict(revalidate_instances="always")
        inner: Inner

    outer = Outer.model_construct(inner=Inner.model_construct(id="hunter2"))  # type: ignore[arg-type]
    error = refused(Outer, outer)
    assert error.path == "$.inner.id"
    assert "hunter2" not in str(error)


# -- definitions ---------------------------------------------------------------------------------


class Socket:
    pass


class Arbitrary(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    socket: Socket


class Unfinished(BaseModel):
    other: NotThere  # type: ignore[name-defined]  # noqa: F821


def test_an_annotation_that_no_json_can_be_made_of_says_whose_it_is() -> None:
    with pytest.raises(ConfigurationError, match=r"the payload of ship has an annotation.*Socket"):
        codec_for(Socket, "the payload of ship")


def test_a_model_with_such_a_field_is_refused_at_the_call() -> None:
    assert "cannot be written" in str(refused(Arbitrary, Arbitrary(socket=Socket())))


def test_a_model_that_is_never_finished_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="not fully defined"):
        codec_for(Unfinished, "the payload of ship").encode(WHAT, {}, cap=CAP)
    with pytest.raises(ConfigurationError, match="not fully defined"):
        codec_for(Unfinished, "the payload of ship").decode(WHAT, "{}")


class Ring:
    """A type of the user's own, of which each holds itself."""

    def __init__(self) -> None:
        self.itself = Ringed(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, Ring) else Ring(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda ring: None),
        )


@dataclasses.dataclass(eq=False)
class Ringed:
    ring: Ring


def test_objects_that_hold_each_other_are_refused() -> None:
    assert "hold each other" in str(refused(Ring, Ring()))


def test_an_error_is_placed_also_under_keys_that_are_no_text() -> None:
    assert refused(dict[int, Line], {1: {"sku": "a", "count": "x"}}).path == "$['1'].count"
    assert refused(tuple[int, Line], (1, {"count": 1})).path == "$[1].sku"
    assert refused(dict[int, date], {"x": date(2026, 1, 1)}).path == "$.x"


def test_a_typed_dict_inside_other_annotations_is_found() -> None:
    annotation = Annotated[dict[str, Address | None], Field(max_length=1)]
    assert trip(annotation, {"home": {"street": "a"}}) == {"home": {"street": "a"}}
    assert trip(tuple[Literal["a"], Address], ("a", {"street": "b"})) == ("a", {"street": "b"})
    assert len(codec_for(annotation, "x").decode(WHAT, "{}")) == 0
    refused(annotation, {"a": None, "b": None})
