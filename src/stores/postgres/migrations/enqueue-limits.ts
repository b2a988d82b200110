// The function `enqueue` as it replaces that of migration 1, with two limits more. A number that JavaScript would read as Infinity is
// refused, as core refuses it. And names that no program has declared can't make kinds without end: each is a row, and a label of
// every metric per kind.
import { enqueueFunction } from "./enqueue.ts";

/** From this many kinds on, `enqueue` makes no new one. Programs that declare their kinds have no such limit. */
export const MAX_KINDS_BY_NAME = 1_000;

/** Number.MAX_VALUE, rounded up in its last digit: a larger number may be read as Infinity. `jsonb` writes it as 309 digits or more. */
const LARGEST = "1.7976931348623158e308";
const MANY_DIGITS = "strpos(translate(enqueue.input::text, '123456789', '000000000'), repeat('0', 309)) > 0";
const TOO_LARGE = `jsonb_path_exists(enqueue.input, '$.** ? (@.type() == "number" && (@ > ${LARGEST} || @ < -${LARGEST}))')`;

export function enqueueWithLimits(schema: string): string {
  return enqueueFunction(schema, {
    create: "CREATE OR REPLACE FUNCTION",
    check: `
    ELSIF octet_length(enqueue.input::text) > 308 AND ${MANY_DIGITS} AND ${TOO_LARGE} THEN
      RAISE EXCEPTION 'the input holds a number that is larger than a double can be'
        USING ERRCODE = 'numeric_value_out_of_range', HINT = 'Pass it as text; a worker would read Infinity.';`,
    beforeNewKind: `
      IF (SELECT count(*) FROM ${schema}.kinds) >= ${MAX_KINDS_BY_NAME} THEN
        RAISE EXCEPTION 'no program has declared the kind %, and there are ${MAX_KINDS_BY_NAME} kinds or more already', quote_literal(enqueue.kind)
          USING ERRCODE = 'program_limit_exceeded',
          HINT = 'Correct the name, or declare the kind first: start a program whose open({ jobs }) has it.';
      END IF;`,
  });
}

/** For the way down: the function of migration 1 again. */
export function formerEnqueue(schema: string): string {
  return enqueueFunction(schema, { create: "CREATE OR REPLACE FUNCTION", check: "", beforeNewKind: "" });
}
