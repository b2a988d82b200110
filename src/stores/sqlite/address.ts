// Which file an address means. Apart from the store: whoever reads an address need not load it.
import { resolve } from "node:path";
import { ErrorCode, OutliveError } from "../../core/errors.ts";

/** `sqlite:./jobs.db`, `sqlite:/var/lib/app/jobs.db`, `sqlite::memory:`. */
export function sqlitePath(url: string): string {
  const path = url.slice("sqlite:".length).replace(/^\/\/(?=\/)/, "");
  if (path === "")
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${JSON.stringify(url)} names no file.`,
      'Write "sqlite:./jobs.db", an absolute path, or "sqlite::memory:".',
      { url },
    );
  return path === ":memory:" ? path : resolve(path);
}
