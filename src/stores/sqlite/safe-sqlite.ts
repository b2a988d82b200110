// Which versions of SQLite, as Node brings them, the store may be trusted to. No types of node:sqlite here.
import { ErrorCode, OutliveError } from "../../core/errors.ts";

/** Ranges in which two connections that write or checkpoint at once can corrupt the file; the fix went into four lines. */
export function sqliteIsSafe(version: string): boolean {
  const [major = 0, minor = 0, patch = 0] = version.split(".").map(Number);
  if (major !== 3) return major > 3;
  if (minor === 44) return patch >= 6;
  if (minor === 50) return patch >= 7;
  if (minor === 51) return patch >= 3;
  return minor >= 52 || minor < 7;
}

/** Asks the library itself; refuses it with what is wrong and what to use instead. */
export function assertSafeSqlite(db: { prepare(sql: string): { get(): unknown } }): void {
  const { version, nul } = db.prepare("SELECT sqlite_version() AS version, 'a' || char(0) || 'b' AS nul").get() as {
    version: string;
    nul: string;
  };
  const wrong = !sqliteIsSafe(version)
    ? `SQLite ${version} can corrupt a database that two connections write to at once`
    : nul.length !== 3
      ? "this Node cuts texts at a NUL character when it reads them from SQLite"
      : undefined;
  if (wrong === undefined) return;
  throw new OutliveError(
    ErrorCode.sqliteUnsafe,
    `Node ${process.version} is not safe for the SQLite store: ${wrong}.`,
    "Use Node 24.16 or newer (26.1 or newer of that line), or pass `sqlite: { allowUnsafe: true }` if you accept the risk.",
    { node: process.version, sqlite: version },
  );
}
