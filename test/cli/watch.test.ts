// The live views: in a real terminal, and without one.
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { job } from "../../src/index.ts";
import { ended, startCli } from "../support/cli.ts";
import { Place } from "../support/processes.ts";
import { drawn, noTerminal, TerminalRun } from "./screen.ts";

const mail = job<{ n: number }>("mail");
const SIZE = { columns: 80, rows: 24 };

test(
  "status --watch draws in place, shows what changes, and q leaves the terminal as it was",
  { skip: noTerminal },
  async (t) => {
    const place = new Place(t);
    const engine = await place.engine({ jobs: [mail] });
    await engine.enqueue(mail, { n: 1 });
    const run = new TerminalRun(t, SIZE, ["status", "--watch"], place.url);
    await run.until((screen) => screen.some((line) => /^mail +1 /.test(line)), "one ready job");
    await engine.enqueue(mail, { n: 2 });
    const screen = await run.until((lines) => lines.some((line) => /^mail +2 /.test(line)), "two ready jobs");
    assert.ok(run.frames >= 2);
    assert.equal(screen.filter((line) => line.startsWith("1 thing needs you")).length, 1, "one headline, drawn over");
    assert.equal(screen.filter((line) => line.startsWith("WHAT TO DO NEXT")).length, 1);
    assert.ok(screen.every((line) => line.length < SIZE.columns) && screen.length <= SIZE.rows);
    assert.ok(run.written.includes("\u001b[31m"), "colours on a terminal");
    assert.ok(run.written.includes("\u001b[?25l"), "the cursor is hidden");
    run.press("q");
    assert.equal(await run.ended, 0);
    assert.ok(run.written.endsWith("\u001b[?7h\u001b[?25h"), "lines wrap again and the cursor is there");
    assert.match(drawn(run.written).join("\n"), /^mail +2 /m, "the last frame stays");
  },
);

test("Ctrl-C ends it as well, and --check keeps its exit code", { skip: noTerminal }, async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  await engine.enqueue(mail, { n: 1 });
  const run = new TerminalRun(t, SIZE, ["status", "--watch", "--check"], place.url);
  await run.until((screen) => screen.some((line) => /^mail +1 /.test(line)), "one ready job");
  run.press("\u0003");
  assert.equal(await run.ended, 1);
  assert.ok(run.written.endsWith("\u001b[?25h"));
});

test("jobs --watch fits the screen", { skip: noTerminal }, async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  for (let n = 0; n < 40; n++) await engine.enqueue(mail, { n }, { id: `mail-${n}` });
  const run = new TerminalRun(t, { columns: 60, rows: 12 }, ["jobs", "--watch"], place.url);
  const screen = await run.until((lines) => lines.some((line) => line.startsWith("mail-39 ")), "the newest job");
  assert.ok(screen.length <= 12, screen.join("\n"));
  await engine.enqueue(mail, { n: 40 }, { id: "mail-40" });
  await run.until((lines) => lines[1]?.startsWith("mail-40 ") === true, "the new one at the top");
  run.press("q");
  assert.equal(await run.ended, 0);
});

test("a table on a terminal is cut to its width", { skip: noTerminal }, async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  await engine.enqueue(mail, { n: 1 }, { id: "x".repeat(200) });
  const run = new TerminalRun(t, { columns: 70, rows: 20 }, ["jobs"], place.url);
  assert.equal(await run.ended, 0);
  const [head, row] = drawn(run.written);
  assert.ok(head!.length < 70 && row!.length < 70, `${head}\n${row}`);
  assert.match(row!, /^x+… +mail +queued /);
});

test("without a terminal --watch prints a block a second until a signal ends it", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  await engine.enqueue(mail, { n: 1 });
  const child = startCli(t, ["status", "--watch", "--json"], { store: place.url });
  const said = ended(child);
  let written = "";
  child.stdout.on("data", (text: string) => (written += text));
  while (written.split("\n").length < 3) await once(child.stdout, "data");
  child.kill("SIGINT");
  const { code, stdout } = await said;
  assert.equal(code, 0);
  const looks = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { kinds: { perSecond: number | null }[] });
  assert.deepEqual(
    looks.slice(0, 2).map(({ kinds }) => kinds[0]?.perSecond),
    [null, 0],
    "the second look knows a rate",
  );
});

test("it ends when its reader stops reading", async (t) => {
  const place = new Place(t);
  await place.engine({ jobs: [mail] });
  const child = startCli(t, ["status", "--watch"], { store: place.url });
  let stderr = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  await once(child.stdout, "data");
  child.stdout.destroy();
  const [code] = (await once(child, "exit")) as [number | null];
  assert.deepEqual([code, stderr], [0, ""]);
});
