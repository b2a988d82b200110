// `outlive torture` as a user runs it next to a store that matters: it kills, it judges, it says so on one line, and it leaves everything as
// it was.
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { job, open } from "../../src/index.ts";
import { cli, ended, startCli } from "../support/cli.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const KEYS =
  "store seed kills zombies takeovers staleWritesRejected enqueued lost committedTwice quarantined " +
  "quarantinedInnocents poison detectMs resumeMs timed resumeMsNobodyLeft resumeMsOfAll notRun";
const precious = job<{ readonly to: string }>("app.mail");

/** The user's own store, with a job that only the user may touch. */
async function usersStore(url: string): Promise<void> {
  await using engine = await open(url, { jobs: [precious], logger: false });
  await engine.enqueue(precious, { to: "a@b.c" }, { id: "precious" });
}

function asking(url: string): (text: string) => Promise<readonly Record<string, unknown>[]> {
  return (text) => withClient(url, async (client) => (await client.query<Record<string, unknown>>(text)).rows);
}

async function tortured(t: TestContext, store: string, env: Readonly<Record<string, string>>): Promise<void> {
  const { code, stdout, stderr } = await cli(
    t,
    ["torture", "--kills", "3", "--workers", "3", "--seed", "1", "--json", "--store", store],
    { env },
  );
  assert.equal(code, 0, `${stdout}${stderr}`);
  assert.equal(stdout.indexOf("\n"), stdout.length - 1, "one line, the rest is on stderr");
  const said = JSON.parse(stdout) as Record<string, number> & { readonly notRun: readonly string[] };
  assert.equal(Object.keys(said).join(" "), KEYS);
  const { seed, lost, committedTwice, quarantined, poison, kills, takeovers, enqueued } = said;
  assert.deepEqual(
    { seed, lost, committedTwice, quarantined, poison },
    { seed: 1, lost: 0, committedTwice: 0, quarantined: 1, poison: 1 },
  );
  assert.ok(kills! >= 3 && takeovers! > 0 && enqueued! > 2, stdout);
  assert.match(said.notRun.join(), /power loss/);
}

test("next to a SQLite file it keeps every promise, and neither the file nor its folder has changed", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-torture-"));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  const file = join(folder, "app.db");
  await usersStore(`sqlite:${file}`);
  const before = { files: readdirSync(folder), bytes: readFileSync(file) };
  // What the user says of a PostgreSQL store is not for a scratch file.
  await tortured(t, `sqlite:${file}`, { OUTLIVE_POSTGRES_SCHEMA: "app" });
  assert.deepEqual(readdirSync(folder), before.files);
  assert.ok(readFileSync(file).equals(before.bytes), "not a byte of the file");
});

test("next to a PostgreSQL store it keeps every promise, and its schema is gone", async (t) => {
  const url = await freshDatabase(t);
  const asked = asking(url);
  const { code, stderr } = await cli(t, ["migrate", "up"], { store: url });
  assert.equal(code, 0, stderr);
  await usersStore(url);
  const look = async (): Promise<unknown> => ({
    schemas: await asked("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_' ORDER BY 1"),
    jobs: await asked("SELECT xmin::text, * FROM outlive.jobs"),
    workers: await asked("SELECT count(*)::int AS count FROM outlive.fleet"),
  });
  const before = await look();
  await tortured(t, url, {});
  assert.deepEqual(await look(), before);
});

test("a signal in the middle of it ends all of its processes, and what is left on a server is named", async (t) => {
  const url = await freshDatabase(t);
  const asked = asking(url);
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-torture-"));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  const child = startCli(t, ["torture", "--kills", "1000", "--workers", "3", "--store", url], {
    env: { TMPDIR: folder },
  });
  const over = ended(child);
  const schemas = (): ReturnType<typeof asked> =>
    asked("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outlive\\_torture\\_%'");
  const [{ nspname: schema } = {}] = await untilTrue(schemas, ({ length }) => length === 1, "it has its schema");
  const workers = (): ReturnType<typeof asked> => asked(`SELECT FROM "${schema as string}".fleet`);
  await untilTrue(
    () => workers().catch(() => []),
    ({ length }) => length > 0,
    "a worker is there",
  );
  child.kill("SIGTERM");
  const { code, stderr } = await over;
  assert.equal(code, 143, stderr);
  assert.match(stderr, new RegExp(`^The schema ${schema as string} is left on the server\\.$`, "m"));
  const sessions = (): ReturnType<typeof asked> =>
    asked("SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()");
  await untilTrue(sessions, ({ length }) => length === 0, "nobody is connected any more");
  assert.deepEqual(
    readdirSync(folder).filter((name) => name.startsWith("outlive-")),
    [],
  );
});

test("numbers that make no run are refused before anything is made", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-torture-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const store = `sqlite:${join(folder, "app.db")}`;
  for (const wrong of [
    ["--kills", "0"],
    ["--workers", "2"],
  ]) {
    const { code, stderr } = await cli(t, ["torture", ...wrong, "--store", store]);
    assert.equal(code, 2, stderr);
    assert.match(stderr, new RegExp(wrong[0]!));
  }
  assert.deepEqual(readdirSync(folder), []);
});
