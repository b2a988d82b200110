// The name of our schema. It is checked here, once, before any of it reaches SQL.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { SETTINGS } from "../../engine/settings.ts";

const { pattern, form } = SETTINGS["postgres.schema"];

/** The schema's name as SQL has it, or an error. */
export function quotedSchema(name: string): string {
  if (pattern.test(name)) return `"${name}"`;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(name)} can't be the name of Outlive's schema.`,
    `Use ${form}.`,
    { schema: name },
  );
}

/** The channel on which workers of this schema are woken. */
export function bellChannel(name: string): string {
  return `${name}_bell`;
}
