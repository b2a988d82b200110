// The check of a whole file, in a process of its own that is ended at its limit: node:sqlite can't be interrupted.
import type { CheckDepth, IntegrityCheck } from "../../core/integrity.ts";
import { startCheck } from "./check-child.ts";

export async function checkFile(path: string, depth: CheckDepth, limitMs: number): Promise<IntegrityCheck> {
  const started = performance.now();
  const { child, findings } = startCheck(path, depth);
  const timer = setTimeout(() => child.kill("SIGKILL"), limitMs);
  const found = await findings;
  clearTimeout(timer);
  const verdict = found === null ? "UNFINISHED" : found.length === 0 ? "PASSED" : "FAILED";
  return { verdict, depth, findings: found ?? [], tookMs: performance.now() - started };
}
