// The name of our schema. It is checked here, once, before any of it reaches SQL.
import { ErrorCode, OutliveError } from "../../core/errors.ts";

export const DEFAULT_SCHEMA = "outlive";

/** The schema's name as SQL has it, or an error: small letters, digits and underscores, at most 40. */
export function quotedSchema(name: string): string {
  if (/^[a-z_][a-z0-9_]{0,39}$/.test(name)) return `"${name}"`;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(name)} can't be the name of Outlive's schema.`,
    "Use small letters, digits and underscores, at most 40, the first no digit.",
    { schema: name },
  );
}

/** The channel on which workers of this schema are woken. */
export function bellChannel(name: string): string {
  return `${name}_bell`;
}
