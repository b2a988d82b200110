// A process that says what its clocks say, each time it is asked, for as long as its parent lives.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { isMainThread, parentPort, Worker } from "node:worker_threads";
import { teller } from "../../proof/torture/processes/history.ts";

if (isMainThread) main();
else parentPort!.on("message", () => parentPort!.postMessage(Date.now()));

function main(): void {
  const folder = process.env["OUTLIVE_TORTURE_HISTORY"]!;
  const tell = teller(folder);
  const thread = new Worker(new URL(import.meta.url));
  process.on("message", () => {
    thread.once("message", (inThread: number) => {
      tell({ what: "rejected", id: "j", write: "commit" });
      process.send!({
        now: Date.now(),
        date: new Date().getTime(),
        text: Date.parse(Date()),
        given: new Date("1970-01-02T00:00:00Z").getTime(),
        isDate: new Date() instanceof Date,
        mono: performance.now(),
        history: latestLine(folder),
        inThread,
      });
    });
    thread.postMessage("read");
  });
  process.on("disconnect", () => process.exit(0));
}

function latestLine(folder: string): number {
  const file = readdirSync(folder).find((name) => name.endsWith(".jsonl"))!;
  const line = readFileSync(join(folder, file), "utf8").trimEnd().split("\n").at(-1)!;
  return (JSON.parse(line) as { at: number }).at;
}
