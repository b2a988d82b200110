// The doctor's child process: takes one task, does it without a pause, answers, and is gone. It ends with its parent, also when
// that is killed while this process is inside SQLite.
import { setPriority } from "node:os";
import { Worker as Thread } from "node:worker_threads";
import { OutliveError } from "../../core/errors.ts";
import { copyTo } from "./backup-copy.ts";
import type { Answers, Progress, Task, Told } from "./doctor-tasks.ts";
import { reindex, vacuum } from "./in-place.ts";
import { readFindings } from "./findings.ts";
import { salvage } from "./salvage.ts";

const PARENT_MS = 250;
/** Known before the task comes: later it may be the process that takes over orphans. */
const PARENT = process.ppid;

process.once("message", (task: Task) => begin(task));

function begin(task: Task): void {
  endWithParent();
  let told: Told;
  try {
    if (task.do === "check" || task.do === "backup") setPriority(10);
    told = { type: "answer", value: run(task) };
  } catch (thrown) {
    const known = thrown instanceof OutliveError;
    told = known
      ? { type: "refused", code: thrown.code, what: thrown.what, hint: thrown.hint, data: thrown.data }
      : { type: "refused", code: null, what: String((thrown as Error)?.stack ?? thrown), hint: "", data: {} };
  }
  // Not an exit: it would close a connection of salvage, and SQLite then deletes the log by its name, which may be the new file's.
  process.send?.(told, () => process.kill(process.pid, "SIGKILL"));
}

function run(task: Task): Answers[Task["do"]] {
  const tell = (progress: Progress): void => void process.send?.({ type: "progress", ...progress });
  switch (task.do) {
    case "check":
      return readFindings(task.path, task.depth);
    case "reindex":
      return reindex(task.path);
    case "vacuum":
      return vacuum(task.path);
    case "salvage":
      return salvage(task.path, task.now, tell);
    case "backup":
      return copyTo(task.path, task.to);
  }
}

/** A thread, because the main one is inside SQLite for as long as the task takes. */
function endWithParent(): void {
  const watch = `setInterval(() => process.ppid === ${PARENT} || process.kill(process.pid, "SIGKILL"), ${PARENT_MS});`;
  new Thread(watch, { eval: true, execArgv: [] }).unref();
}
