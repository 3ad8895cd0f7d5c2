"""Pydantic models of ordinary use: each is a shape that a user may ask for as structured output."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Dict, Generic, List, Literal, NamedTuple, Optional, Set, Tuple, TypeVar, Union
from uuid import UUID

from pydantic import (UUID4, AnyUrl, AwareDatetime, Base64Bytes, BaseModel, ConfigDict, EmailStr, Field, HttpUrl, Json, PositiveInt,
                      RootModel, SecretStr, StringConstraints, conint, conlist, constr)
from typing_extensions import TypedDict


class Address(BaseModel):
    street: str
    city: str
    zip_code: Annotated[str, StringConstraints(pattern=r"^\d{5}(-\d{4})?$")]


class Person(BaseModel):
    """A person with an address: nested models, descriptions and defaults."""
    name: str = Field(description="full name", min_length=1, max_length=50)
    age: int = Field(ge=0, le=130, examples=[42])
    address: Address
    nickname: Optional[str] = None


class Color(str, Enum):
    red = "red"
    green = "green"


class Priority(IntEnum):
    low = 1
    high = 2


class Task(BaseModel):
    color: Color = Color.red
    priority: Priority
    state: Literal["open", "closed"] = "open"
    version: Literal[2]


class Lists(BaseModel):
    tags: List[str] = Field(min_length=1, max_length=3)
    scores: conlist(float, min_length=2, max_length=2)
    pairs: List[Tuple[str, int]]


class Sets(BaseModel):
    colors: Set[Color]
    numbers: Set[int] = Field(max_length=4)
    words: set[str]
    mixed: Set[Union[int, str]] = Field(max_length=3)


class Tuples(BaseModel):
    point: Tuple[float, float]
    many: Tuple[int, ...]
    optional: Optional[Tuple[str, bool]] = None


class Maps(BaseModel):
    counts: Dict[str, int]
    by_color: Dict[Color, float]
    nested: Dict[str, List[Address]] = {}
    codes: Dict[constr(pattern=r"^[a-z]{2}$"), str] = {}


class Strings(BaseModel):
    code: constr(pattern=r"^[A-Z]{3}-\d{2,4}$")
    short: constr(max_length=8, strip_whitespace=True)
    slug: Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=20)]


class Numbers(BaseModel):
    small: conint(ge=-5, lt=5)
    even: int = Field(multiple_of=2)
    share: float = Field(gt=0, le=1)
    count: PositiveInt


class Money(BaseModel):
    price: Decimal = Field(ge=0, max_digits=8, decimal_places=2)
    total: Decimal


class Times(BaseModel):
    day: date
    at: datetime
    aware: AwareDatetime
    hour: time
    lasts: timedelta


class Identifiers(BaseModel):
    id: UUID
    key: UUID4
    email: EmailStr
    home: HttpUrl
    link: AnyUrl
    host: IPv4Address
    peer: IPv6Address


class Bytes(BaseModel):
    raw: bytes
    encoded: Base64Bytes
    secret: SecretStr
    file: Path


class Payload(BaseModel):
    data: Json
    typed: Json[List[int]]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    barks: bool


class Pets(BaseModel):
    pet: Union[Cat, Dog] = Field(discriminator="kind")
    others: List[Annotated[Union[Cat, Dog], Field(discriminator="kind")]] = []


class Unions(BaseModel):
    value: Union[int, str, None]
    shape: Union[Address, List[float], bool]


class Node(BaseModel):
    value: int
    children: List["Node"] = []


class Linked(BaseModel):
    label: str
    next: Optional["Linked"] = None


class Aliased(BaseModel):
    user_name: str = Field(alias="userName")
    is_active: bool = Field(True, alias="is-active", title="Active?")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    a: int
    b: str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: List[T]
    total: int = Field(ge=0)


class Pages(BaseModel):
    people: Page[Cat]
    numbers: Page[int]


class Numbered(RootModel[List[int]]):
    pass


class Words(RootModel[Dict[str, str]]):
    pass


class Movie(TypedDict, total=False):
    title: str
    year: int


class Point(NamedTuple):
    x: int
    y: int = 0


class Typed(BaseModel):
    movie: Movie
    point: Point


class Free(BaseModel):
    anything: Any
    mapping: dict
    items: list
    nothing: None = None


class Base(BaseModel):
    id: int


class Derived(Base):
    """Inherits a field and overrides its schema's extras."""
    model_config = ConfigDict(json_schema_extra={"examples": [{"id": 1, "text": "a"}]})
    text: str = Field(json_schema_extra={"x-order": 1, "format": "markdown"})


class Step(BaseModel):
    explanation: str
    output: str


class MathReasoning(BaseModel):
    steps: list[Step]
    final_answer: str


MODELS = [Person, Task, Lists, Sets, Tuples, Maps, Strings, Numbers, Times, Identifiers, Bytes, Payload, Pets, Unions, Node, Linked, Aliased,
          Strict, Open, Money, Pages, Numbered, Words, Typed, Free, Derived, MathReasoning]

# Pydantic checks more than their schemas say: the strings of Decimal and of Json are any string there.
CHECKED_FURTHER = {Money, Payload}
