// A bank file: 100,000 payments from a CSV, run by two worker processes, one of which is killed with SIGKILL on the way and not replaced. Then
// the output file is checked line by line. Outside of this repository write:
//   import { batch, open, TerminalError } from "outlive";
//   import { csv } from "outlive/files";
import { fork } from "node:child_process";
import { once } from "node:events";
import { createReadStream, createWriteStream } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import { csv } from "../src/files.ts";
import { batch, open, TerminalError } from "../src/index.ts";

const payments = batch("payments", {
  row: z.object({ iban: z.string(), cents: z.coerce.number<string>() }),
  context: z.object({ bank: z.string() }),
});

payments.handle((row, run) => {
  if (row.input.cents <= 0) throw new TerminalError("nothing to pay");
  run.write("accepted.csv", `${row.line},${row.input.iban},${row.input.cents}\n`);
});

payments.done((end) => console.log(`${end.rows.succeeded} paid, ${end.rows.failed} failed`));

const ROWS = 100_000;
/** Line 1 is the header. Every thousandth payment is of nothing, and two lines are not payments at all. */
const ibanOf = (line: number): string => `XX${String(line * 7_919).padStart(16, "0")}`;
const centsOf = (line: number): string =>
  line % 1_000 === 0 ? "0" : line === 500 || line === 501 ? "much" : `${line * 3}`;

await using engine = await open("sqlite:./jobs.db", { jobs: [payments], blobs: "./blobs" });

if (process.argv[2] === "work") {
  const stop = new AbortController();
  // Also if the program that started it is gone.
  process.once("disconnect", () => stop.abort());
  await engine.work({ signal: stop.signal });
} else {
  await writeFile("november.csv");
  const workers = [1, 2].map(() => fork(fileURLToPath(import.meta.url), ["work"], { execArgv: process.execArgv }));
  const exits = workers.map((worker) => once(worker, "exit"));

  const { id } = await engine.submit(payments, csv("november.csv"), { context: { bank: "acme" }, key: "november" });

  let killed = false;
  const ended = await until(async () => {
    const { rows, state } = (await engine.batch(id))!;
    if (!killed && rows.succeeded > ROWS / 10) {
      killed = workers[0]!.kill("SIGKILL");
      console.log(`killed a worker with rows left: ${rows.left > 0}`);
    }
    return state === "completed" && (await engine.get(`${id}:done:1`))?.state === "succeeded";
  });
  if (!ended) throw new Error("the batch did not end");

  const { rows, outputs } = (await engine.batch(id))!;
  const lines = await checked(join("blobs", outputs["accepted.csv"]!.blob));
  for (const worker of workers) if (worker.connected) worker.disconnect();
  const signals = (await Promise.all(exits)).map(([, signal]) => String(signal));
  console.log(`rows ${rows.total}, succeeded ${rows.succeeded}, failed ${rows.failed}, left ${rows.left}`);
  console.log(`accepted.csv: ${lines} lines, each at its place; workers ended by ${signals.join(", ")}`);
}

async function writeFile(name: string): Promise<void> {
  const file = createWriteStream(name);
  file.write("iban,cents\n");
  for (let line = 2; line <= ROWS + 1; line++)
    if (!file.write(`${ibanOf(line)},${centsOf(line)}\n`)) await once(file, "drain");
  file.end();
  await once(file, "close");
}

/** Reads the output file and the source side by side: every payment of something is there once, at its place, and nothing else is. */
async function checked(path: string): Promise<number> {
  let line = 1;
  let count = 0;
  for await (const text of createInterface({ input: createReadStream(path) })) {
    do line++;
    while (!(Number(centsOf(line)) > 0));
    if (text !== `${line},${ibanOf(line)},${centsOf(line)}`) throw new Error(`line ${line} of the source is ${text}`);
    count++;
  }
  return count;
}

/** Asks every 50 ms, for at most a minute. */
async function until(isSo: () => Promise<boolean>): Promise<boolean> {
  for (let n = 0; n < 1_200; n++) {
    if (await isSo()) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
}
