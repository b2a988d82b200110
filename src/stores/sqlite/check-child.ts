// A process that checks one file and says what it found. For checks that take longer than the main thread may stand still.
import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { CheckDepth } from "../../core/integrity.ts";

// Sources are run as .ts, the package as .js; tsc rewrites imports but not this.
const PROGRAM = fileURLToPath(
  new URL(`./check-process${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url),
);

/** `findings`: null if the process was ended before it said anything. */
export function startCheck(
  path: string,
  depth: CheckDepth,
): { readonly child: ChildProcess; readonly findings: Promise<readonly string[] | null> } {
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", PROGRAM, path, depth], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  let said = "";
  child.stdout.on("data", (data: Buffer) => (said += data.toString()));
  const findings = new Promise<readonly string[] | null>((resolve) => {
    child.once("error", () => resolve(null));
    child.once("close", (code) => resolve(code === 0 ? (JSON.parse(said) as string[]) : null));
  });
  return { child, findings };
}
