"""The declarative base and the one column habit all tables share: times are epoch seconds by the database's clock."""

from sqlalchemy import JSON, Float, Integer, MetaData
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {dict[str, object]: JSON(none_as_null=True)}  # noqa: RUF012 - SQLAlchemy reads it from the class


DAY_SECONDS = 86400


class db_now(FunctionElement[float]):
    """Epoch seconds by the database's clock: the only clock that leases are judged by."""

    type = Float(53)
    inherit_cache = True


@compiles(db_now, "postgresql")
def _postgresql(_element: db_now, _compiler: SQLCompiler, **_kw: object) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


@compiles(db_now, "sqlite")
def _sqlite(_element: db_now, _compiler: SQLCompiler, **_kw: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


class db_today(FunctionElement[int]):
    """The day by the database's clock, in UTC: whole days since the epoch."""

    type = Integer()
    inherit_cache = True


@compiles(db_today, "postgresql")
def _postgresql_today(_element: db_today, _compiler: SQLCompiler, **_kw: object) -> str:
    return "floor(extract(epoch from clock_timestamp()) / 86400)::integer"


@compiles(db_today, "sqlite")
def _sqlite_today(_element: db_today, _compiler: SQLCompiler, **_kw: object) -> str:
    return "CAST(julianday('now') - 2440587.5 AS INTEGER)"
