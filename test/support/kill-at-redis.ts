// As kill-at.ts, for a child that works on Redis: kills the process with SIGKILL before it sends a script, once it has sent it and before it reads the
// answer, or after the answer. The engine has no hook for this: the connection itself is wrapped.
// OUTLIVE_KILL_AT is `before:SCRIPT`, `sent:SCRIPT` or `after:SCRIPT`, with `#N` behind it for the N-th such script.
import { isMainThread } from "node:worker_threads";
import { Connection } from "../../src/stores/redis/connection.ts";

const at = /^(before|sent|after):(\w+)(?:#(\d+))?$/.exec(process.env["OUTLIVE_KILL_AT"] ?? "");

if (at && isMainThread) {
  const [, point, script, count = "1"] = at;
  let left = Number(count);

  const die = (): never => {
    process.kill(process.pid, "SIGKILL");
    for (;;);
  };

  type Eval = Connection["eval"];
  const { value } = Object.getOwnPropertyDescriptor(Connection.prototype, "eval")!;
  const send = value as Eval;
  Connection.prototype.eval = function (this: Connection, ...call: Parameters<Eval>) {
    if (call[0] !== script || --left !== 0) return send.apply(this, call);
    if (point === "before") die();
    if (point === "sent") setImmediate(die);
    return send.apply(this, call).then((reply) => (point === "after" ? die() : reply));
  };
}
