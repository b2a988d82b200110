// What all options have in common: their building blocks, and the errors that name the option.
import * as z from "zod";
import { ErrorCode, OutliveError } from "./core/errors.ts";

export const duration = z
  .string()
  .regex(/^\d+(\.\d+)?(ms|s|m|h|d)$/, 'write a number and a unit: "250ms", "30s", "5m", "12h", "7d"');
export const limit = z.int().min(1).max(1_000);
export const crashAction = z.enum(["retry", "pending", "fail"]);
export const method = z.custom((value) => typeof value === "function", "must be a function");

export function check(of: string, schema: z.ZodType, value: unknown): void {
  const result = schema.safeParse(value);
  if (result.success) return;
  const told = result.error.issues
    .slice(0, 5)
    .map((issue) => `${issue.path.map(String).join(".") || "options"}: ${issue.message}`);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The options of ${of} are not usable: ${told.join("; ")}.`,
    "See the comments of its option type for what each takes.",
    { of, issues: told },
  );
}

export function refuse(wrong: boolean, option: string, what: string, hint: string): void {
  if (wrong) throw new OutliveError(ErrorCode.optionInvalid, `${option} ${what}.`, hint, { option });
}

/** Node's timers fire at once when they are told to wait longer than 2^31-1 ms. */
export function refuseLongTimer(option: string, ms: number): void {
  refuse(ms > 24 * 86_400_000, option, "is longer than 24d, which is as long as a timer can wait", "Use at most 24d.");
}
