// The files of this package that run in their own thread or process, and how they are found. The package is built as one
// file per entry and per program, with shared chunks, so a file of the source tree is not where it was written. A user's
// bundler copies that code into one file and omits the programs, so a bundled worker would have no maintenance thread.
// `import.meta.url` is undefined in a CommonJS bundle, and webpack resolves `new URL("...", import.meta.url)` at build
// time: that is why the programs are named here by text.
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** This file, relative to the folder of the code. scripts/build.mjs writes the name of the chunk here that holds it. */
const BUILT_AS = "platform/program-file.ts";

/** Every file that runs as a thread or a process: scripts/build.mjs builds each of them as a file of its own. */
export type Program =
  | "cli/supervisor/worker-main"
  | "stores/postgres/maintenance-thread"
  | "stores/redis/maintenance-thread"
  | "stores/sqlite/doctor/child"
  | "stores/sqlite/maintenance-thread"
  | "testing/crash-test/child"
  | "torture/worker";

/** Sources run as .ts, the package as .js. Call it when the file is needed, not at load. */
export function programFile(name: Program): URL {
  assertNotBundled();
  return new URL(`${codeFolder()}${name}${BUILT_AS.endsWith(".ts") ? ".ts" : ".js"}`);
}

/** The folder of this package's code, as it is in the frames of a stack; null: it is in a bundle, whose frames are the program's. */
export function ownFolder(): string | null {
  const folder = codeFolder();
  return folder === null ? null : fileURLToPath(folder);
}

/** Throws if this code is not running from the file it was built as. */
export function assertNotBundled(): void {
  if (codeFolder() !== null) return;
  const here: string | undefined = import.meta.url;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    "Outlive was bundled into this program, and a bundle lacks the files that its maintenance thread and its file checks run.",
    "Mark `outlive` as external in the bundler (esbuild: `--external:outlive`) and install it next to the program. A program that only enqueues can bundle `outlive/client`.",
    { file: here ?? null },
  );
}

function codeFolder(): string | null {
  const here: string | undefined = import.meta.url;
  if (here === undefined || !here.endsWith(`/${BUILT_AS}`) || !existsSync(new URL(here))) return null;
  return here.slice(0, -BUILT_AS.length);
}
