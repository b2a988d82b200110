// The scoreboard's page and pictures, made from a fixed results object: no contender, no server and no measurement is needed.
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { contenders } from "../proof/scoreboard/contenders.ts";
import { documentOf, picturesOf } from "../proof/scoreboard/document.ts";
import { isWhole, readOptions } from "../proof/scoreboard/options.ts";
import { playedAgain, type Results, versionsAfter } from "../proof/scoreboard/results.ts";

const results: Results = {
  date: "2026-11-15",
  machine: "2 cores",
  nodes: "Node 24.21.0",
  servers: ["PostgreSQL 15", "Redis 7"],
  versions: { "outlive-sqlite": "commit 0123abcdef", "outlive-postgres": "commit 0123abcdef", bullmq: "6.7.0" },
  absent: { plainjob: "its add-on could not be built" },
  broken: ["pg-boss: zombie: no answer"],
  cells: {
    "outlive-sqlite": {
      killToRerun: { default: [130, 110, 250], fastest: [31] },
      poison: {
        deaths: 5,
        innocents: { done: 19, failed: 0, open: 0 },
        poison: "quarantined",
        stopped: true,
        pretended: false,
        tookMs: 90_000,
      },
      speed: { drainThroughput: 50_000, addsOneByOne: 400 },
    },
    "outlive-postgres": { speed: { drainThroughput: 20_000 } },
    "outlive-redis": { speed: { drainThroughput: 40_000 } },
    bullmq: {
      killToRerun: { default: [62_000, 45_000, 88_000] },
      zombie: {
        takenAfterMs: 1_000,
        note: "accepted",
        noteStored: true,
        completed: false,
        pretended: false,
        afterZombie: "active",
        afterOwner: "completed",
      },
      poison: {
        deaths: 2,
        innocents: { done: 0, failed: 19, open: 0 },
        poison: "failed",
        stopped: true,
        pretended: false,
        tookMs: 9_000,
      },
      kept: [
        { what: "client killed", acknowledged: 2_000, missing: 0 },
        { what: "server killed, as installed", acknowledged: 1_289, missing: 1_289 },
      ],
      blocked: {
        default: { blockMs: 40_000, starts: 2, secondAfterMs: 36_000, end: "completed" },
        fastest: { blockMs: 40_000, starts: 1, secondAfterMs: null, end: "completed" },
      },
      sigterm: {
        jobMs: 50_000,
        exitedAfterMs: 48_000,
        ended: true,
        rerunAfterMs: null,
        atExit: "completed",
        stateAtExit: "done",
        watchedMs: 70_000,
      },
      speed: { drainThroughput: 10_000 },
    },
    "graphile-worker": {
      zombie: {
        takenAfterMs: 1_000,
        note: null,
        noteStored: false,
        completed: true,
        pretended: true,
        afterZombie: "no row",
        afterOwner: "no row",
      },
      poison: {
        deaths: 25,
        innocents: { done: 0, failed: 19, open: 0 },
        poison: "not locked, attempt 25 of 25",
        stopped: true,
        pretended: true,
        tookMs: 99_000,
      },
      sigterm: {
        jobMs: 50_000,
        exitedAfterMs: 48_400,
        ended: true,
        rerunAfterMs: null,
        atExit: "locked, attempt 1 of 25",
        stateAtExit: "running",
        watchedMs: 70_000,
      },
    },
    plainjob: {
      sigterm: {
        jobMs: 50_000,
        exitedAfterMs: 160,
        ended: false,
        rerunAfterMs: null,
        atExit: "status 1",
        stateAtExit: "running",
        watchedMs: 70_000,
      },
    },
  },
};

const page = documentOf(results);
const lines = page.split("\n");

/** The cells of the row with this title, without the title. */
function row(title: string): readonly string[] {
  const line = lines.find((each) => each.startsWith(`| ${title} |`));
  assert.ok(line, `there is a row "${title}"`);
  return line
    .split("|")
    .map((cell) => cell.trim())
    .slice(2, -1);
}

function column(id: string): number {
  return contenders.findIndex((each) => each.id === id);
}

test("each contender is one column of both tables, in order, with its version, and has one adapter file", () => {
  const headers = lines.filter((line) => line.startsWith("|  | Outlive on SQLite"));
  const names = contenders.map(({ id, name }) => (id === "bullmq" ? `${name} 6.7.0` : name));
  assert.deepEqual(headers, [`|  | ${names.join(" | ")} |`, `|  | ${names.join(" | ")} |`]);
  const adapters = readdirSync(new URL("../proof/scoreboard/peers", import.meta.url)).filter(
    (file) => file !== "load.ts",
  );
  assert.deepEqual(
    adapters.toSorted(),
    [...new Set(contenders.map(({ adapter }) => adapter.replace("./peers/", "")))].toSorted(),
  );
});

test("what is measured and what is pinned are the same packages", () => {
  const manifest = JSON.parse(readFileSync(new URL("../proof/scoreboard/package.json", import.meta.url), "utf8")) as {
    dependencies: Record<string, string>;
  };
  for (const { package: name } of contenders)
    if (name !== null) assert.match(manifest.dependencies[name] ?? "", /^\d+\.\d+\.\d+$/, name);
});

test("a measured time is a median with its range, and a time that is too long to wait for is marked as quoted, with its source", () => {
  const cells = row("`kill -9` to rerun, at defaults");
  assert.equal(cells[column("outlive-sqlite")], "130 ms (110 ms to 250 ms, 3 kills)");
  assert.equal(cells[column("bullmq")], "62.0 s (45.0 s to 88.0 s, 3 kills)");
  assert.equal(cells[column("graphile-worker")], "_4 h_ (quoted)");
  assert.ok(page.includes("- **graphile-worker**, default: 4 h: `locked_at < now() - interval '4 hours'`"));
});

test("what was not measured says so, in every row, and a contender that was not run is named with the reason", () => {
  assert.equal(row("`kill -9` to rerun, at its fastest settings")[column("outlive-postgres")], "not measured");
  assert.equal(row("drained per second, as documented for throughput")[column("plainjob")], "not measured");
  assert.ok(page.includes("**plainjob was not run:** its add-on could not be built."));
  assert.ok(page.includes("- pg-boss: zombie: no answer"));
});

test("zombies, poison, lost jobs and blocked loops are told apart by what became of the job", () => {
  const bullmq = (title: string): string | undefined => row(title)[column("bullmq")];
  assert.equal(bullmq("a zombie completes the job of its new owner"), "no");
  assert.equal(bullmq("a zombie overwrites progress"), "**yes**");
  assert.equal(bullmq("a job that kills its worker: innocents of 19 that end badly"), "**19**, 0 done");
  assert.equal(
    row("a job that kills its worker: innocents of 19 that end badly")[column("outlive-sqlite")],
    "0, 19 done",
  );
  assert.equal(bullmq("acknowledged jobs missing after `kill -9` of the client"), "0 of 2,000");
  assert.equal(bullmq("the same, the server as installed"), "**1,289** of 1,289");
  assert.equal(bullmq("loop blocked for 40 s, at defaults"), "**run 2 times**, again after 36.0 s (completed)");
  assert.equal(bullmq("loop blocked for 40 s, at its fastest settings"), "run once (completed)");
  assert.equal(
    row("SIGTERM in the middle of a job of 50 s")[column("plainjob")],
    "exit after 160 ms; **no worker had it 70.0 s later** (status 1)",
  );
});

test("handlers that finished after SIGTERM are distinguished by whether their store knows of it", () => {
  const cells = row("SIGTERM in the middle of a job of 50 s");
  assert.equal(cells[column("bullmq")], "exit after 48.0 s: the handler finished (completed)");
  assert.equal(
    cells[column("graphile-worker")],
    "exit after 48.4 s: **the handler finished, and the store does not know** (locked, attempt 1 of 25)",
  );
});

test("every cell for which a lock was made older says so, and no other", () => {
  const titles = [
    "a zombie completes the job of its new owner",
    "a job that kills its worker: innocents of 19 that end badly",
    "a job that kills its worker: deaths until it stops",
  ];
  assert.deepEqual(
    titles.map((title) => row(title)[column("graphile-worker")]),
    [
      "**yes** (its lock made 4 h older)",
      "**19**, 0 done (its lock made 4 h older after each death)",
      "25 (its lock made 4 h older after each death)",
    ],
  );
  for (const title of titles) assert.doesNotMatch(row(title)[column("bullmq")]!, /older/, title);
  assert.ok(page.includes('- **"its lock made older"**: '));
});

test("the page names the commit of Outlive, and says so where none was recorded", () => {
  assert.match(page, /; Outlive at commit 0123abcdef\. /);
  const before = documentOf({ ...results, versions: { "outlive-sqlite": "this commit", bullmq: "6.7.0" } });
  assert.match(before, /; which commit of Outlive was not recorded\. /);
  assert.match(documentOf({ ...results, notes: ["Something else."] }), /^Something else\.$/m);
});

test("a speed is followed by its ratio to ours on the same kind of store", () => {
  const cells = row("drained per second, as documented for throughput");
  assert.equal(cells[column("outlive-sqlite")], "50,000");
  assert.equal(cells[column("outlive-redis")], "40,000");
  assert.equal(cells[column("bullmq")], "10,000 (0.25×)");
});

test("the pictures have a bar for each contender with a figure, dashed where it is quoted", () => {
  const { "kill-to-rerun.svg": kills = "", "throughput.svg": rates = "" } = picturesOf(results);
  assert.deepEqual(looks(kills), ["ours", "theirs", "quoted", "quoted", "quoted"]);
  assert.deepEqual(looks(rates), ["ours", "ours", "ours", "theirs"]);
  for (const svg of [kills, rates]) {
    assert.ok(svg.startsWith("<svg xmlns="));
    assert.ok(svg.includes("prefers-color-scheme: dark"));
  }
});

test("the committed page has the pictures that it shows", () => {
  const committed = readFileSync(new URL("../docs/scoreboard.md", import.meta.url), "utf8");
  const shown = [...committed.matchAll(/!\[[^\]]*\]\(([^)]+)\)/g)].map((match) => match[1]!);
  assert.deepEqual(shown, ["scoreboard/kill-to-rerun.svg", "scoreboard/throughput.svg"]);
  for (const file of shown) assert.ok(existsSync(new URL(`../docs/${file}`, import.meta.url)), file);
});

test("the committed page and its pictures are those of the committed results", () => {
  const docs = new URL("../docs/", import.meta.url);
  const committed = (file: string): string => readFileSync(new URL(file, docs), "utf8");
  const kept = JSON.parse(committed("scoreboard/results.json")) as Results;
  assert.equal(committed("scoreboard.md"), documentOf(kept));
  for (const [name, svg] of Object.entries(picturesOf(kept))) assert.equal(committed(`scoreboard/${name}`), svg, name);
  assert.equal(readOptions([]).results, "docs/scoreboard/results.json");
  assert.equal(readOptions(["--quick"]).results, "scoreboard-results.json");
});

test("the scoreboard and the bench run the same versions of the peers that both have", () => {
  type Manifest = Record<"dependencies" | "overrides", Readonly<Record<string, string>>>;
  const [board, bench] = ["proof/scoreboard", "proof/bench"].map(
    (folder) => JSON.parse(readFileSync(new URL(`../${folder}/package.json`, import.meta.url), "utf8")) as Manifest,
  );
  const shared = Object.keys(bench!.dependencies).filter((name) => name in board!.dependencies);
  assert.deepEqual(shared.sort(), ["bullmq", "graphile-worker", "ioredis", "pg-boss"]);
  for (const name of shared) assert.equal(board!.dependencies[name], bench!.dependencies[name], name);
  assert.deepEqual(board!.overrides, bench!.overrides);
  for (const version of [board!, bench!].flatMap(({ dependencies }) => Object.values(dependencies)))
    assert.match(version, /^\d+\.\d+\.\d+$/, "exactly, not a range");
});

function looks(svg: string): readonly string[] {
  return [...svg.matchAll(/<rect class="(ours|theirs|quoted)"/g)].map((match) => match[1]!);
}

test("a page of which a part was measured again says so, and does not claim to be of one run", () => {
  assert.match(documentOf(results), /in one run/);
  const part = readOptions(["--only", "zombie,poison", "--contenders", "bullmq"]);
  assert.equal(isWhole(part), false);
  assert.equal(isWhole(readOptions([])), true);
  const page = documentOf({ ...results, apart: playedAgain(results, part) });
  assert.doesNotMatch(page, /in one run/);
  assert.match(
    page,
    /Not of the same run: zombie, poison of bullmq, measured after the rest, which is of 2026-11-15\./,
  );
  const again = playedAgain({ ...results, apart: ["first"] }, readOptions(["--only", "speed"]));
  assert.deepEqual([again.length, again[0]], [2, "first"]);
  assert.match(again[1]!, /which is of 2026-11-15, commit 0123abcdef$/);
});

test("who was not played again keeps the version that was", () => {
  const now = { "outlive-sqlite": "commit 456", "outlive-postgres": "commit 456", bullmq: "6.8.0" };
  assert.deepEqual(versionsAfter(results.versions, now, ["bullmq"]), { ...results.versions, bullmq: "6.8.0" });
  assert.deepEqual(versionsAfter({}, now, ["bullmq"]), now);
});
