// Loaded into a child with --import: kills the process with SIGKILL at a chosen statement of its main thread, before or after
// the commit of the transaction that contains it. The engine has no hook for this: node:sqlite itself is wrapped.
// OUTLIVE_KILL_SIGNAL is SIGKILL unless it says SIGSTOP, which freezes the process at that point. OUTLIVE_KILL_AT is `before:REGEX` or `after:REGEX`, or `at:REGEX` for a statement outside transactions, with `#N` behind it for the N-th such transaction.
import { DatabaseSync, StatementSync } from "node:sqlite";
import { isMainThread } from "node:worker_threads";

const at = /^(before|after|at):(.*?)(?:#(\d+))?$/.exec(process.env["OUTLIVE_KILL_AT"] ?? "");

if (at && isMainThread) {
  const point = at[1] as "before" | "after" | "at";
  const pattern = new RegExp(at[2]!);
  let left = Number(at[3] ?? 1);
  let seen = false;

  const around = (text: string, run: () => unknown): unknown => {
    if (point === "at") {
      if (pattern.test(text) && --left === 0) die();
      return run();
    }
    if (/^\s*COMMIT/.test(text) && seen) {
      seen = false;
      if (--left === 0 && point === "before") die();
      const result = run();
      if (left === 0) die();
      return result;
    }
    if (/^\s*(BEGIN|ROLLBACK)\b/.test(text)) seen = false;
    const result = run();
    const rows = Array.isArray(result) ? result.length : ((result as { changes?: number } | undefined)?.changes ?? 1);
    if (rows > 0 && pattern.test(text)) seen = true;
    return result;
  };
  const die = (): void => {
    process.kill(process.pid, process.env["OUTLIVE_KILL_SIGNAL"] ?? "SIGKILL");
    if (!process.env["OUTLIVE_KILL_SIGNAL"]) for (;;);
  };

  for (const name of ["run", "all", "get"] as const) {
    const original = StatementSync.prototype[name] as (...values: unknown[]) => unknown;
    (StatementSync.prototype as unknown as Record<string, unknown>)[name] = function (
      this: StatementSync,
      ...values: unknown[]
    ) {
      return around(this.sourceSQL, () => original.apply(this, values));
    };
  }
  const { exec } = DatabaseSync.prototype as { exec: (this: DatabaseSync, sql: string) => void };
  DatabaseSync.prototype.exec = function (this: DatabaseSync, sql: string) {
    around(sql, () => exec.call(this, sql));
  };
}
