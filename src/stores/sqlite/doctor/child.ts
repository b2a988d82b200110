// The child process: takes one task, runs it to the end, sends the result, and exits. It ends with its parent, also
// when the parent is killed while this process is inside SQLite. Tasks and messages are plain data: they cross the
// process boundary as JSON.
import { setPriority } from "node:os";
import { Worker as Thread } from "node:worker_threads";
import { OutliveError } from "../../../job/errors.ts";
import type { CheckDepth } from "../../store-parts.ts";
import { readFindings } from "./check.ts";
import { copyTo, reindex, vacuum } from "./repair.ts";
import { salvage, type Salvaged } from "./salvage/salvage.ts";

export type Task =
  | { readonly do: "check"; readonly path: string; readonly depth: CheckDepth }
  | { readonly do: "reindex" | "vacuum"; readonly path: string }
  | { readonly do: "salvage"; readonly path: string; readonly now: number }
  | { readonly do: "backup"; readonly path: string; readonly to: string };

/** The result of each task. */
export interface Results {
  readonly check: readonly string[];
  readonly reindex: null;
  readonly vacuum: null;
  readonly salvage: Salvaged;
  readonly backup: { readonly findings: readonly string[] };
}

export interface Progress {
  readonly done: number;
  readonly total: number;
  readonly what: string;
}

export type Message =
  | { readonly type: "result"; readonly value: unknown }
  | ({ readonly type: "progress" } & Progress)
  | {
      readonly type: "error";
      /** The parts of an OutliveError; null: `what` is the stack of an unexpected error. */
      readonly code: string | null;
      readonly what: string;
      readonly hint: string;
      readonly data: Readonly<Record<string, unknown>>;
    };

const PARENT_CHECK_MS = 250;
/** Read before the task arrives: later it may be the process that adopts orphans. */
const PARENT = process.ppid;

process.once("message", (task: Task) => begin(task));

function begin(task: Task): void {
  endWithParent();
  let message: Message;
  try {
    if (task.do === "check" || task.do === "backup") setPriority(10);
    message = { type: "result", value: run(task) };
  } catch (thrown) {
    message =
      thrown instanceof OutliveError
        ? { type: "error", code: thrown.code, what: thrown.what, hint: thrown.hint, data: thrown.data }
        : { type: "error", code: null, what: String((thrown as Error)?.stack ?? thrown), hint: "", data: {} };
  }
  // Not an exit: it would close a connection of salvage, and SQLite then deletes the log by its name, which may be the new file's.
  process.send?.(message, () => process.kill(process.pid, "SIGKILL"));
}

function run(task: Task): Results[Task["do"]] {
  switch (task.do) {
    case "check":
      return readFindings(task.path, task.depth);
    case "reindex":
      return reindex(task.path);
    case "vacuum":
      return vacuum(task.path);
    case "salvage":
      return salvage(task.path, task.now, (progress) => void process.send?.({ type: "progress", ...progress }));
    case "backup":
      return copyTo(task.path, task.to);
  }
}

/** A thread, because the main one is inside SQLite for as long as the task takes. */
function endWithParent(): void {
  const watch = `setInterval(() => process.ppid === ${PARENT} || process.kill(process.pid, "SIGKILL"), ${PARENT_CHECK_MS});`;
  new Thread(watch, { eval: true, execArgv: [] }).unref();
}
