// The files of this package that run in their own thread or process. A bundler copies the package's code into one file
// and leaves these out, so a bundled worker would have no maintenance thread. `import.meta.url` is undefined in a
// CommonJS bundle, and webpack resolves `new URL("...", import.meta.url)` at build time. That is why callers pass both
// parts to `programFile`.
import { existsSync } from "node:fs";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/**
 * `name` is relative to `from` and has no extension: sources run as .ts, the package as .js. Call it when the file is
 * needed, not at load.
 */
export function programFile(name: string, from: string): URL {
  assertNotBundled();
  return new URL(`${name}${from.endsWith(".ts") ? ".ts" : ".js"}`, from);
}

/** Throws if this code is not running from the file it was built as. */
export function assertNotBundled(): void {
  const here: string | undefined = import.meta.url;
  if (here !== undefined && /\/platform\/program-file\.[jt]s$/.test(here) && existsSync(new URL(here))) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    "Outlive was bundled into this program, and a bundle lacks the files that its maintenance thread and its file checks run.",
    "Mark `outlive` as external in the bundler (esbuild: `--external:outlive`) and install it next to the program. A program that only enqueues can bundle `outlive/client`.",
    { file: here ?? null },
  );
}
