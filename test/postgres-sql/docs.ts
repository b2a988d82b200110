// The SQL that the documents show, for tests that run it.
import { readFileSync } from "node:fs";

/** Every block of SQL in a document. */
export function shownSql(file: string): string[] {
  const text = readFileSync(new URL(`../../docs/${file}`, import.meta.url), "utf8");
  return [...text.matchAll(/```sql\n([^]*?)```/g)].map(([, sql]) => sql!);
}
