// The copying of a live store, in the doctor's child: one read transaction, which holds up nobody, written into a new file.
import { openBare } from "../database.ts";
import { inOurWords } from "../errors.ts";
import { readFindings } from "./findings.ts";

const BUSY_MS = 5_000;

/** `to` is not there, or is an empty file. Answers what a quick check of the copy finds. */
export function copyTo(path: string, to: string): { readonly findings: readonly string[] } {
  try {
    const db = openBare(path, { readOnly: true, timeout: BUSY_MS });
    try {
      db.prepare("VACUUM INTO ?").run(to);
    } finally {
      db.close();
    }
  } catch (thrown) {
    throw inOurWords(`copying ${path}`, thrown);
  }
  return { findings: readFindings(to, "quick") };
}
