// The simulator keeps its own promises: a short run breaks nothing, the same seed is the same history to the last byte, a few
// mutants of different sorts are found, and a failing seed becomes a smaller one. The long runs are `npm run sim`.
import assert from "node:assert/strict";
import { fork, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { runCampaign } from "../proof/sim/campaign.ts";
import { exhaust } from "../proof/sim/exhaustive/exhaust.ts";
import { type History, simulate } from "../proof/sim/history.ts";
import { MUTANTS } from "../proof/sim/mutants/index.ts";
import { withVerbs } from "../src/stores/observed.ts";
import { type Mutant, only } from "../proof/sim/mutants/mutant.ts";
import { hunt } from "../proof/sim/mutation.ts";
import { shrink } from "../proof/sim/shrink.ts";
import { FAULT_KINDS } from "../proof/sim/world/faults.ts";

const SEEDS = 40;
/** Enough for the mutants below, which nearly every seed finds. */
const FOUND_WITHIN = 30;
/** If seeds draw otherwise one day, any other that seed 1 does not find will do. */
const MISSED_BY_SEED_1 = "purgeTooEarly";

describe("the simulator", () => {
  it("finds no broken promise, and sees takeovers, stale writes and ambiguous answers", async () => {
    const broken: History[] = [];
    const campaign = await runCampaign({
      from: 1,
      seeds: SEEDS,
      onHistory: (history) => void (history.violation === null || broken.push(history)),
    });
    assert.deepEqual(
      broken.map(({ seed, violation, story }) => `seed ${seed}: ${violation}\n${story.join("\n")}`),
      [],
    );
    assert.equal(campaign.seeds, SEEDS);
    assert.ok(campaign.takeovers > SEEDS, `${campaign.takeovers} takeovers`);
    assert.ok(campaign.staleWrites > 0, `${campaign.staleWrites} stale writes`);
    assert.ok(campaign.ambiguous > SEEDS, `${campaign.ambiguous} ambiguous answers`);
    assert.ok(campaign.void < SEEDS / 5, `${campaign.void} void seeds`);
  });

  it("tells the same seed in the same words, and another seed in others", async () => {
    for (const seed of [3, 11, 27]) {
      const [first, second] = [await simulate(seed, { keepLines: 1e6 }), await simulate(seed, { keepLines: 1e6 })];
      assert.deepEqual(first.story, second.story);
      assert.equal(first.digest, second.digest);
    }
    assert.notEqual((await simulate(3)).digest, (await simulate(4)).digest);
  });

  it("counts a seed as a violation if its replay is another history", async () => {
    let worlds = 0;
    // Something that is not of the seed decides: another number of jobs at each look.
    const profile = {
      workloads: ["money"],
      killMigration: 0,
      get jobs() {
        return 3 + worlds++;
      },
    };
    const told: (string | null)[] = [];
    const campaign = await runCampaign({
      from: 100,
      seeds: 3,
      profile,
      onHistory: ({ violation }) => void told.push(violation),
    });
    assert.equal(worlds, 4, "of these only seed 101 is run twice");
    assert.deepEqual([campaign.seeds, campaign.violations], [3, 1]);
    assert.deepEqual([told[0], told[2]], [null, null]);
    assert.match(told[1]!, /^the replay of seed 101 was another history, first here: .* \/ /);
  });

  it("does nothing to a history whose faults are all muted", async () => {
    const { strikes, tally } = await simulate(5, {
      muted: { kinds: new Set(FAULT_KINDS) },
      profile: { workloads: ["money", "steps"] },
    });
    assert.deepEqual(strikes, []);
    assert.equal(tally.takeovers + tally.staleWrites + tally.deaths, 0);
  });

  it("puts older copies of the store back while processes live, as another file and over the file itself", async () => {
    const { focus: profile } = MUTANTS.find(({ name }) => name === "restoredWorkersWrite")!;
    const told: string[] = [];
    const sum = { restores: 0, takenBack: 0 };
    for (let seed = 1; seed <= 6; seed++) {
      const { violation, tally, story } = await simulate(seed, { profile: profile!, keepLines: 1e6 });
      assert.equal(violation, null, `seed ${seed}`);
      sum.restores += tally.restores;
      sum.takenBack += tally.takenBack;
      told.push(...story);
    }
    assert.ok(sum.restores > 6 && sum.takenBack > 0, JSON.stringify(sum));
    for (const what of [/RESTORED to .* as another file/, /RESTORED to .* written over the file/, /store\.replaced /])
      assert.ok(
        told.some((line) => what.test(line)),
        String(what),
      );
  });

  const some = [
    "staleSaidApplied",
    "commitInTwoParts",
    "innocentsBlamed",
    "lossIsADeath",
    "clientClock",
    "enqueueSwallowed",
    "releaseWrittenDead",
    "zombieCalledRepeated",
    "followDropped",
    "anyChildEnded",
    "signalNotKept",
  ];
  for (const name of some) {
    it(`finds the mutant ${name}`, async () => {
      const mutant = MUTANTS.find((one) => one.name === name)!;
      assert.notEqual((await hunt(mutant, 1, FOUND_WITHIN)).seed, null, `not found within ${FOUND_WITHIN} seeds`);
    });
  }

  it("finds a key that is looked up outside the transaction by two producers that race for it", async () => {
    const mutant = MUTANTS.find(({ name }) => name === "dedupeOutsideTheTransaction")!;
    const { violation } = await hunt(mutant, 1, FOUND_WITHIN);
    assert.match(
      violation!,
      /^jobs (\S+) and \1-twin are both unfinished with the dedupe key|^jobs (\S+)-twin and \2 are/,
    );
  });

  it("takes a process that ends with an error in the calm for a broken promise", async () => {
    const refuses: Mutant = {
      name: "refuses",
      what: "kinds can't be declared",
      store: (store) => withVerbs(store, { declare: () => Promise.reject(new Error("no kinds today")) }),
    };
    const { violation, lawBroken } = await simulate(1, { mutant: refuses });
    assert.match(violation!, /ended in the calm: Error: no kinds today/);
    assert.equal(lawBroken, false, "no law saw it: a mutant that throws has not been found by one");
  });

  it("does not count a mutant as found that only stumbles over itself", async () => {
    const stumbles: Mutant = {
      name: "stumbles",
      what: "its own code throws",
      storeClock: (host) => ({ ...host, now: () => (undefined as unknown as { at: number }).at }),
    };
    const { seed, violation } = await hunt(stumbles, 1, 3);
    assert.equal(seed, null);
    assert.match(violation!, /^no law was broken, but an error was thrown: .*TypeError/s);
  });

  it("does not count a mutant as found by a seed that finds something without it", async () => {
    const harmless: Mutant = {
      name: "harmless",
      what: "nothing is wrong with it; in its conditions nobody works",
      focus: only(["money"], {}, { workers: 0, jobs: 3 }),
    };
    const { seed, violation } = await hunt(harmless, 1, 3, true);
    assert.equal(seed, null);
    assert.match(violation!, /^seed 1 finds something without the mutant: /);
  });

  it("finds a commit in two parts in the small scope, whatever the order of the store calls", async () => {
    const mutant = MUTANTS.find(({ name }) => name === "commitInTwoParts")!;
    const { violations, story } = await exhaust({ mutant, untilFirst: true });
    assert.equal(violations, 1);
    assert.match(story.at(-1)!, /the ledger got a row/);
  });

  it("shrinks a failing seed to fewer faults and jobs that still break the same law", async () => {
    const mutant = MUTANTS.find(({ name }) => name === "innocentsBlamed")!;
    const { seed } = await hunt(mutant, 1, FOUND_WITHIN);
    const failed = await simulate(seed!, { mutant });
    const { history, options } = await shrink(failed, { mutant }, 60);
    const lawOf = (violation: string | null): string => violation!.replaceAll(/\S*\d\S*/g, "#");
    assert.match(history.violation!, /is blamed/);
    assert.equal(lawOf(history.violation), lawOf(failed.violation));
    assert.ok(history.strikes.length < failed.strikes.length, `${history.strikes.length} of ${failed.strikes.length}`);
    assert.equal((await simulate(seed!, options)).digest, history.digest);
  });
});

describe("the command line of the simulator", () => {
  it("ends with one line of JSON and exit code 0 when every promise was kept", async () => {
    const { code, last, stderr } = await sim("--seeds", "2", "--processes", "2", "--json");
    assert.equal(code, 0, stderr);
    const keys = ["seeds", "violations", "void", "takeovers", "staleWrites", "ambiguous", "simulatedHours"];
    assert.deepEqual(Object.keys(last), keys);
    assert.ok(keys.every((key) => typeof last[key] === "number"));
    assert.deepEqual([last["seeds"], last["violations"]], [2, 0]);
    assert.ok(Number(last["simulatedHours"]) > 0);
  });

  it("reports its progress, and ends when the process that started it was killed: no one would read the result", async (t) => {
    const child = fork(new URL("../proof/sim/main.ts", import.meta.url), ["--seeds", "1000000", "--processes", "1"]);
    t.after(() => child.kill("SIGKILL"));
    const [said] = (await once(child, "message")) as [unknown];
    assert.deepEqual(said, { done: 20 });
    child.disconnect();
    assert.deepEqual(await once(child, "exit"), [1, null]);
  });

  it("tells the story of a broken law, with exit code 1", async () => {
    const mutant = MUTANTS.find(({ name }) => name === "staleSaidApplied")!;
    const { seed, violation } = await hunt(mutant, 1, FOUND_WITHIN);
    const { code, stdout } = await sim("--seed", `${seed}`, "--mutant", mutant.name);
    assert.equal(code, 1);
    assert.ok(stdout.includes("ORACLE"), stdout);
    assert.equal(stdout.trimEnd().split("\n").at(-1)!.startsWith(`seed ${seed}: `), true, violation!);
    const sound = await sim("--seed", `${seed}`);
    assert.equal(sound.code, 0, sound.stdout);
  });

  it("tells each seed that breaks a law, made small, with the command that repeats it, and ends with exit code 1", async () => {
    const planted = ["--mutant", "errorsNotCounted"];
    const { code, last, stderr } = await sim("--seeds", "4", "--processes", "2", ...planted, "--json");
    assert.equal(code, 1, stderr);
    assert.equal(last["seeds"], 4);
    const told = [...stderr.matchAll(/^seed (\d+): errors miscounted.*\nshrunk in \d+ tries from \d+ faults/gm)];
    assert.ok(told.length > 0 && told.length <= Number(last["violations"]), stderr);
    const seed = told[0]![1]!;
    assert.ok(stderr.includes(`replay it: npm run sim -- --seed ${seed} ${planted.join(" ")} --verbose`), stderr);
    const again = await sim("--seed", seed, ...planted, "--json");
    assert.deepEqual([again.code, again.last["seeds"], again.last["violations"]], [1, 1, 1]);
  });

  it("breaks a law in every example of its documentation that plants a bug", async () => {
    const page = readFileSync(new URL("../docs/testing-simulator.md", import.meta.url), "utf8");
    const examples = [...page.matchAll(/^npm run sim -- (.*--mutant \w+.*)$/gm)].map(([, options]) =>
      options!.split(" "),
    );
    assert.ok(examples.length > 0);
    for (const example of examples) assert.equal((await sim(...example)).code, 1, example.join(" "));
  });

  it("ends a storm with one line of JSON, and with exit code 1 if a law is broken in it", async () => {
    const calm = await sim("--storm", "--seeds", "1", "--json");
    assert.equal(calm.code, 0, calm.stderr);
    assert.deepEqual([calm.last["innocentsQuarantined"], calm.last["violations"]], [0, 0]);
    const unjust = await sim("--storm", "--seeds", "2", "--mutant", "countedAtTheClaim", "--json");
    assert.equal(unjust.code, 1);
    assert.equal(unjust.last["violations"], 2);
    assert.match(unjust.stderr, /^seed 1: /m);
  });

  it("ends a storm with exit code 1 if an innocent is in quarantine", async () => {
    const { code, last, stderr } = await sim("--storm", "--seeds", "2", "--mutant", "quarantinedAtOnce", "--json");
    assert.equal(code, 1);
    assert.ok(Number(last["innocentsQuarantined"]) > 0, stderr);
    assert.match(stderr, /^seed \d+: \d+ innocents are in quarantine$/m);
  });

  it("holds the figures of isolation, and ends with exit code 1 if one of them is missed", async () => {
    const kept = await sim("--isolation", "--seeds", "3", "--json");
    assert.equal(kept.code, 0, kept.stderr);
    const { culpritDeaths, allowedCulpritDeaths, runAgainMs, innocentsQuarantined, violations } = kept.last;
    assert.deepEqual([kept.last["seeds"], kept.last["slowSeeds"], violations, innocentsQuarantined], [3, 1, 0, 0]);
    assert.equal(allowedCulpritDeaths, 6 + 2, "of 50 jobs, with a limit of 2");
    assert.ok(Number(culpritDeaths) > 6 && Number(runAgainMs) > 0, JSON.stringify(kept.last));
    for (const [mutant, told] of [
      ["boundForgotten", /^seed \d+, culprit: job poison-\d+ has killed 8 workers among 50 jobs, 8 are allowed$/m],
      ["suspectsOneByOne", /^seed 1, twoKills: \d+ ms after kill 1 only \d of 1000 jobs run$/m],
    ] as const) {
      const missed = await sim("--isolation", "--seeds", "3", "--mutant", mutant, "--json");
      assert.equal(missed.code, 1, mutant);
      assert.match(missed.stderr, told);
    }
  });

  it("names a mutant that was missed, with exit code 1", async () => {
    const { code, last } = await sim("--mutants", "--mutant", MISSED_BY_SEED_1, "--budget", "1", "--json");
    assert.deepEqual(last, { mutants: 1, caught: 0, missed: [MISSED_BY_SEED_1] });
    assert.equal(code, 1);
  });

  it("lists its options with --help, and refuses an unknown option with one line", async () => {
    const help = await sim("--help");
    assert.equal(help.code, 0, help.stderr);
    assert.match(help.stdout, /--mutants .*each must be found/);
    const wrong = await sim("--no-such-option");
    assert.deepEqual([wrong.code, wrong.stdout], [1, ""]);
    assert.match(wrong.stderr, /^Unknown option '--no-such-option'.*\nnpm run sim -- --help lists the options\.\n$/);
  });

  it("knows its mutants by name: a hunt for none would find all of them", async () => {
    const { code, stdout, stderr } = await sim("--mutants", "--mutant", "noSuchThing", "--budget", "1", "--json");
    assert.equal(code, 1);
    assert.equal(stdout, "");
    assert.match(stderr, /--mutant noSuchThing: use .*clientClock/);
  });
});

interface Said {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** The last line of stdout. */
  readonly last: Readonly<Record<string, unknown>>;
}

function sim(...args: readonly string[]): Promise<Said> {
  const child = spawn(process.execPath, [fileURLToPath(new URL("../proof/sim/main.ts", import.meta.url)), ...args], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => {
      const line = stdout.trimEnd().split("\n").at(-1)!;
      resolve({ code, stdout, stderr, last: (line.startsWith("{") ? JSON.parse(line) : {}) as Said["last"] });
    });
  });
}
