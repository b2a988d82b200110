// What all stores share of the rule that a released migration never changes: the checksum of a step, the comparison of
// tables that have no checksums yet, and the refusal of a store created by an unreleased build.
import { createHash } from "node:crypto";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/**
 * The checksum of a step's statements, as 15 hexadecimal digits, which fit into a bigint. Comments and white space may
 * be reworded.
 */
export function stepChecksum(sql: string): string {
  const statements = sql.replaceAll(/--.*$/gm, "").replaceAll(/\s+/g, " ").trim();
  return createHash("sha256").update(statements).digest("hex").slice(0, 15);
}

/**
 * One phrase for each column that is missing or unexpected. Columns are lines such as `jobs.id text NOT NULL`.
 * Unexpected tables belong to the user.
 */
export function columnDifferences(expected: ReadonlySet<string>, found: ReadonlySet<string>): string[] {
  const tableOf = (line: string): string => line.slice(0, line.indexOf("."));
  const tables = new Set([...expected].map(tableOf));
  const missing = [...expected].filter((line) => !found.has(line));
  const unexpected = [...found].filter((line) => !expected.has(line) && tables.has(tableOf(line)));
  return [...missing.map((line) => `${line} is missing`), ...unexpected.map((line) => `${line} is not expected`)];
}

/** One applied step, as recorded in the store and as defined in this program. */
export interface ComparedStep {
  readonly number: number;
  readonly name: string;
  readonly checksum: string;
  /** Checksums of other texts that the step once had and from which a store can upgrade. */
  readonly alsoAccepted?: readonly string[];
  /** Null: the store was created before checksums were recorded. */
  readonly stored: string | null;
}

/** The first step that differs from the released one; null: none does. */
export function differingStep(steps: readonly ComparedStep[]): ComparedStep | null {
  const fits = ({ checksum, alsoAccepted = [], stored }: ComparedStep): boolean =>
    stored === null || stored === checksum || alsoAccepted.includes(stored);
  return steps.find((step) => !fits(step)) ?? null;
}

/** `store`: how the sentence names it. `instead`: how to start again without it. */
export function checksumRefused(
  { store, instead }: { readonly store: string; readonly instead: string },
  { number, name, checksum, stored }: ComparedStep,
): OutliveError {
  return new OutliveError(
    ErrorCode.schemaDiffers,
    `Migration ${number} (${name}) of ${store} has the checksum ${stored}; the released migration has ${checksum}.`,
    whatToDo(instead),
    { store, migration: number, found: stored, known: checksum },
  );
}

export function columnsRefused(
  { store, instead }: { readonly store: string; readonly instead: string },
  version: number,
  differences: readonly string[],
): OutliveError {
  const shown = differences.slice(0, 3).join(", ");
  const more = differences.length > 3 ? `, and ${differences.length - 3} more` : "";
  return new OutliveError(
    ErrorCode.schemaDiffers,
    `The tables of ${store} do not match schema version ${version}: ${shown}${more}.`,
    whatToDo(instead),
    { store, version, differences },
  );
}

function whatToDo(instead: string): string {
  return `An unreleased build of Outlive made this store. Nothing was changed. Finish or export its jobs with that build, restore a backup that a released version made, or ${instead}.`;
}
