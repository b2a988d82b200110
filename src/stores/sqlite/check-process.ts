// The program of a check's own process: `path depth` in, a JSON list of findings out.
import type { CheckDepth } from "../../core/integrity.ts";
import { checkOpen } from "./check-open.ts";
import { Database } from "./database.ts";

const [path, depth] = process.argv.slice(2) as [string, CheckDepth];

function findings(): readonly string[] {
  try {
    const db = new Database({
      path,
      readOnly: true,
      mustExist: true,
      asIs: true,
      allowUnsafeSqlite: true,
      allowNetworkFilesystem: true,
    });
    try {
      return checkOpen(db, depth);
    } finally {
      db.close();
    }
  } catch (thrown) {
    return [(thrown as Error).message];
  }
}

process.stdout.write(JSON.stringify(findings()));
