// The check on a connection that is open already. It blocks its thread: for small files, and for the process that checks large ones.
import type { CheckDepth } from "../../../core/integrity.ts";
import type { Database } from "../database.ts";
import { saysDamaged } from "../errors.ts";
import { checkPragma, findingsOf } from "./findings.ts";

/** What is wrong with the file, at most 100 findings; none: it is sound. */
export function checkOpen(db: Database, depth: CheckDepth): readonly string[] {
  try {
    return findingsOf(db.sql(checkPragma(depth)).all());
  } catch (thrown) {
    // Damaged so early that the check itself can't go on.
    if (saysDamaged(thrown)) return [(thrown as Error).message];
    throw thrown;
  }
}
