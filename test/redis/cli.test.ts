// The commands about batches and keys at a redis:// address.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { batch, open } from "../../src/index.ts";
import { cli, type Said } from "../support/cli.ts";
import { untilTrue } from "../support/processes.ts";
import { freshName } from "../support/redis.ts";

const INDEX = JSON.stringify(new URL("../../src/index.ts", import.meta.url).href);
const MODULE = `import { batch, job } from ${INDEX};
export const payments = batch("payments", { block: 10, retry: { attempts: 1 } });
payments.handle(() => {});
export const mail = job("mail", { limits: [{ name: "tenant", key: ({ tenant }) => tenant, running: 1 }] }).handle(() => {});
`;
const CSV = `iban,cents\n${Array.from({ length: 25 }, (_, n) => `IB${n},${n}\n`).join("")}`;

interface Bank {
  readonly url: string;
  readonly run: (...args: readonly string[]) => Promise<Said>;
}

async function bank(t: TestContext): Promise<Bank> {
  const { url: server, name } = await freshName(t);
  const url = `${server}?store=${name}`;
  const cwd = mkdtempSync(join(tmpdir(), "outlive-test-"));
  t.after(() => rmSync(cwd, { recursive: true, force: true }));
  mkdirSync(join(cwd, "jobs"));
  const files = {
    "outlive.config.mjs": `export default { store: ${JSON.stringify(url)}, jobs: ${JSON.stringify(join(cwd, "jobs/*.mjs"))} };\n`,
    "jobs/payments.mjs": MODULE,
    "november.csv": CSV,
  };
  for (const [file, text] of Object.entries(files)) writeFileSync(join(cwd, file), text);
  return { url, run: (...args) => cli(t, args, { cwd }) };
}

test("submit, batches, batch, why, abort and retry work on redis", async (t) => {
  const { run, url } = await bank(t);
  const submitted = await run("submit", "payments", "november.csv", "--key", "november");
  assert.equal(submitted.code, 0, submitted.stderr);
  const id = submitted.stdout.trim();
  const { batches } = JSON.parse((await run("batches", "--json")).stdout) as {
    batches: { id: string; state: string }[];
  };
  assert.deepEqual(
    batches.map((one) => [one.id, one.state]),
    [[id, "sealed"]],
  );
  assert.match(
    (await run("why", id)).stdout,
    /It has not ended: 25 rows have not ended\.\n +3 blocks wait for a worker\n/,
  );
  assert.match((await run("abort", id)).stdout, /is being aborted|is aborted/);
  await using engine = await open(url, { jobs: [batch("payments")], logger: false });
  await untilTrue(
    () => engine.batch(id),
    (found) => found?.state === "aborted",
    "what was queued is cancelled, and the batch has ended",
  );
  const shown = await run("batch", id);
  assert.match(shown.stdout, /aborted/);
  const retried = await run("retry", `${id}:1:0`);
  assert.deepEqual([retried.code, /retry --batch/.test(retried.stdout)], [4, true]);
});

test("limit sets a weight, pauses, shows and resumes a key on redis", async (t) => {
  const { run } = await bank(t);
  for (const flags of [
    ["--running", "3", "--weight", "2"],
    ["--pause", "unpaid"],
  ]) {
    const said = await run("limit", "tenant", "acme", ...flags);
    assert.equal(said.code, 0, said.stderr);
  }
  const listed = await run("limits", "--json");
  const { keys } = JSON.parse(listed.stdout) as { keys: { key: string; own: object; paused: { reason: string } }[] };
  assert.deepEqual(
    keys.map(({ key, own, paused }) => [key, own, paused.reason]),
    [["acme", { running: 3, weight: 2 }, "unpaid"]],
  );
  assert.equal((await run("limit", "tenant", "acme", "--resume")).code, 0);
});
