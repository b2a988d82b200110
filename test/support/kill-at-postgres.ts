// As kill-at.ts, for a child that works on PostgreSQL: kills the process with SIGKILL before it sends, or after it has received the answer to, the COMMIT of a
// transaction that contains a chosen statement. The engine has no hook for this: the driver itself is wrapped.
// OUTLIVE_KILL_AT is `before:REGEX` or `after:REGEX`, with `#N` behind it for the N-th such transaction.
import { isMainThread } from "node:worker_threads";
import pg from "pg";

const at = /^(before|after):(.*?)(?:#(\d+))?$/.exec(process.env["OUTLIVE_KILL_AT"] ?? "");

if (at && isMainThread) {
  const [, point, source, count = "1"] = at;
  const pattern = new RegExp(source!);
  const seen = new WeakSet<pg.Client>();
  let left = Number(count);

  const die = (): never => {
    process.kill(process.pid, "SIGKILL");
    for (;;);
  };

  type Query = (this: pg.Client, query: string | { text?: string }, ...more: unknown[]) => unknown;
  const { value } = Object.getOwnPropertyDescriptor(pg.Client.prototype, "query")!;
  const send = value as Query;
  (pg.Client.prototype as { query: Query }).query = function (query, ...more) {
    const text = typeof query === "string" ? query : (query.text ?? "");
    if (/^\s*(BEGIN|ROLLBACK)\b/.test(text)) seen.delete(this);
    if (pattern.test(text)) seen.add(this);
    if (!/^\s*COMMIT/.test(text) || !seen.delete(this) || --left !== 0) return send.call(this, query, ...more);
    if (point === "before") die();
    return (send.call(this, query, ...more) as Promise<unknown>).then(die);
  };
}
