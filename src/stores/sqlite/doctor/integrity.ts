// The check of a file, seen from outside: in a child process, under a limit of time. What was not finished is never called passed.
import type { CheckDepth, IntegrityCheck } from "../../../core/integrity.ts";
import { type DoctorOptions, inChild } from "./run-in-child.ts";
import { assertExists } from "../file.ts";

/**
 * Reads the whole file and answers what is wrong with it. Beside live workers, at a low priority, and never through this process's
 * own connections. A check that is not done within `limitMs` (Infinity: no limit) is killed and UNFINISHED.
 */
export async function checkFile(
  path: string,
  depth: CheckDepth,
  limitMs: number,
  options: Pick<DoctorOptions, "signal" | "background"> = {},
): Promise<IntegrityCheck> {
  assertExists(path);
  const started = performance.now();
  const findings = await inChild({ do: "check", path, depth }, { limitMs, ...options });
  const tookMs = Math.round(performance.now() - started);
  if (findings === null) return { verdict: "UNFINISHED", depth, findings: [], tookMs };
  return { verdict: findings.length === 0 ? "PASSED" : "FAILED", depth, findings, tookMs };
}
