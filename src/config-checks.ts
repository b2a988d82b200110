// What all options have in common: their building blocks, and the errors that name the option.
import * as v from "valibot";
import { ErrorCode, OutliveError } from "./core/errors.ts";

export const duration = v.pipe(
  v.string(),
  v.regex(/^\d+(\.\d+)?(ms|s|m|h|d)$/, 'write a number and a unit: "250ms", "30s", "5m", "12h", "7d"'),
);
export const limit = wholeNumber(1, 1_000);
export const crashAction = v.picklist(["retry", "pending", "fail"]);
export const method = v.function("must be a function");

export function wholeNumber(least: number, most: number): v.GenericSchema<number> {
  const told = `must be a whole number from ${least} to ${most}`;
  return v.pipe(v.number(told), v.integer(told), v.minValue(least, told), v.maxValue(most, told));
}

/** An object of which every key may be left out, and none that is not here may be given. */
export function options(entries: v.ObjectEntries): v.GenericSchema {
  const optional = Object.entries(entries).map(([key, schema]) => [key, v.optional(schema)] as const);
  const known = Object.keys(entries).join(", ");
  return v.pipe(
    v.custom((value) => typeof value === "object" && value !== null && !Array.isArray(value), "must be an object"),
    v.strictObject(Object.fromEntries(optional), `is no option; there are ${known}`),
  );
}

export function check(of: string, schema: v.GenericSchema, value: unknown): void {
  const result = v.safeParse(schema, value, { abortPipeEarly: true, message: misfit });
  if (result.success) return;
  const told = result.issues.slice(0, 5).map((issue) => `${v.getDotPath(issue) ?? "options"}: ${issue.message}`);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The options of ${of} are not usable: ${told.join("; ")}.`,
    "See the comments of its option type for what each takes.",
    { of, issues: told },
  );
}

/** Where an option has no sentence of its own. */
function misfit({ expected, received, message }: v.BaseIssue<unknown>): string {
  return expected === null ? message : `must be ${expected}, not ${received}`;
}

export function refuse(wrong: boolean, option: string, what: string, hint: string): void {
  if (wrong) throw new OutliveError(ErrorCode.optionInvalid, `${option} ${what}.`, hint, { option });
}

/** Node's timers fire at once when they are told to wait longer than 2^31-1 ms. */
export function refuseLongTimer(option: string, ms: number): void {
  refuse(ms > 24 * 86_400_000, option, "is longer than 24d, which is as long as a timer can wait", "Use at most 24d.");
}
