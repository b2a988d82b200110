// All migrations in their order; the number of one is its place, counted from 1. What is released is never changed: the next one is.
import { stepChecksum } from "../../released-steps.ts";
import { quotedSchema } from "../address.ts";
import type { Migration } from "../migrate.ts";
import { allKinds } from "./all-kinds.ts";
import { attempts } from "./attempts.ts";
import { batches } from "./batches.ts";
import { boundedWakes } from "./bounded-wakes.ts";
import { childrenByState, unmarkedEnds } from "./children.ts";
import { collections } from "./collections.ts";
import { confirmedTicks } from "./confirmed-ticks.ts";
import { consequences } from "./consequences.ts";
import { core } from "./core.ts";
import { enqueueWithLimits, formerEnqueue } from "./enqueue.ts";
import { families } from "./families.ts";
import { fairness, rings } from "./fairness.ts";
import { handedSlots } from "./handed-slots.ts";
import { heldInBulk } from "./held-in-bulk.ts";
import { inputHash } from "./input-hash.ts";
import { keys } from "./keys.ts";
import { loneBatches } from "./lone-batches.ts";
import { openGates } from "./open-gates.ts";
import { plainJobs } from "./plain-jobs.ts";
import { isolation, suspects } from "./isolation.ts";
import { operations } from "./operations.ts";
import { partPages } from "./part-pages.ts";
import { reclaim, TICK_SECONDS } from "./reclaim.ts";
import { losses, restore } from "./restore.ts";
import { schedules } from "./schedules.ts";
import { seedViews } from "./seed-views.ts";
import { submit } from "./submit.ts";
import { traces } from "./traces.ts";
import { verdicts } from "./verdicts.ts";
import { formerDeadJobs, tolerantDeadJobs, views } from "./views.ts";
import { waiting } from "./waiting.ts";

// Replaces the view dead_jobs and the function enqueue by versions that no stored text and no caller can harm.

export const textsAndLimits: Migration = {
  name: "texts and limits",
  drops: "the limits of the function enqueue, and what lets the view dead_jobs read damaged texts",
  up: (schema) => [tolerantDeadJobs(schema), enqueueWithLimits(schema)].join("\n"),
  down: (schema) => [formerEnqueue(schema), formerDeadJobs(schema)].join("\n"),
};

export const MIGRATIONS: readonly Migration[] = [
  core,
  reclaim,
  views,
  losses,
  textsAndLimits,
  restore,
  seedViews,
  isolation,
  suspects,
  confirmedTicks,
  waiting,
  keys,
  verdicts,
  consequences,
  fairness,
  rings,
  families,
  batches,
  submit,
  schedules,
  collections,
  operations,
  openGates,
  traces,
  allKinds,
  attempts,
  partPages,
  plainJobs,
  heldInBulk,
  inputHash,
  loneBatches,
  boundedWakes,
  handedSlots,
  childrenByState,
  unmarkedEnds,
];

/**
 * Checksums of other texts that a step had on main, for a while, because it was edited in place. Stores with them upgrade: the next
 * step does whatever the text that is here now leaves out, does it again where it is done already, and then keeps the checksum of the
 * text that is here. Nothing is added to this list: a step that is on main is not edited.
 *
 * 7: a1f9cb8 wrote isolation by halving into it, which is step 8 now. 8f4f53f, b4411b6 and 14b2e6c then changed the functions.
 */
export const ALSO_ACCEPTED: Readonly<Record<number, readonly string[]>> = {
  7: ["b3717e62d55673d", "4ab944d0a4dadb5", "b79bc811e7a82f5", "dfe34336d1e76c9"],
};

// Migrations as SQL: what the executor sends is what `outlive migrate print` prints, so that whoever may not let a program migrate can
// read it and run it with psql.

/** Held until the end of the transaction: one migration of a schema at a time. */
export function lockText(name: string): string {
  return `SELECT pg_advisory_xact_lock(hashtextextended('outlive migrate ${name}', 0))`;
}

/** The name that released checksums were made with: it stays, whatever `postgres.schema` is. */
const CHECKSUM_SCHEMA = "outlive";

/** Of a migration as this program has it. It does not depend on the name of the schema. */
export function checksumOf(number: number): string {
  return stepChecksum(MIGRATIONS[number - 1]!.up(quotedSchema(CHECKSUM_SCHEMA)));
}

/** Keeps the checksums of migrations that were applied before checksums were kept. */
export function adoptText(name: string, numbers: readonly number[]): string {
  return `${asOwner(name)}
  INSERT INTO ${quotedSchema(name)}.meta (key, value) VALUES ${numbers.map(checksumRow).join(", ")} ON CONFLICT DO NOTHING;`;
}

/** Everything of one step up, inside a transaction. It refuses to run twice, out of order, or on what an unreleased build made. */
export function upText(name: string, number: number): string {
  const schema = quotedSchema(name);
  const start = `
  CREATE SCHEMA IF NOT EXISTS ${schema};
  ${asOwner(name)}
  CREATE TABLE IF NOT EXISTS ${schema}.meta (key text PRIMARY KEY, value bigint NOT NULL);`;
  return `${number === 1 ? start : asOwner(name)}
  ${expect(schema, name, number - 1)}
  ${lockTables(schema, number)}
  ${sentText(schema, number)}
  -- The schema may be opened to roles that may not call everything.
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ${schema} FROM PUBLIC;
  INSERT INTO ${schema}.meta (key, value) VALUES ('schema', ${number}), ('migration ${number}', ${schema}.now_ms()), ${[...repaired(number), number].map(checksumRow).join(", ")}
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;`;
}

/** The statements of a step in the order in which they are sent. */
function sentText(schema: string, number: number): string {
  const { up, sent = up } = MIGRATIONS[number - 1]!;
  return sent(schema).trim();
}

/** Everything of one step down, inside a transaction. */
export function downText(name: string, number: number): string {
  const schema = quotedSchema(name);
  const version =
    number > 1
      ? `UPDATE ${schema}.meta SET value = ${number - 1} WHERE key = 'schema';
  DELETE FROM ${schema}.meta WHERE key IN ('migration ${number}', 'checksum ${number}');`
      : `DROP TABLE ${schema}.meta;
  -- What is not ours stays, and with it the schema.
  DO $$ BEGIN DROP SCHEMA ${schema}; EXCEPTION WHEN dependent_objects_still_exist THEN NULL; END $$;`;
  return `${asOwner(name)}
  ${expect(schema, name, number)}
  ${MIGRATIONS[number - 1]!.down(schema).trim()}
  ${version}`;
}

/** A script for psql. */
export function scriptText(name: string, numbers: readonly number[], direction: "up" | "down"): string {
  const text = direction === "up" ? upText : downText;
  return numbers
    .map((number) => {
      const { name: title, drops } = MIGRATIONS[number - 1]!;
      const what = direction === "up" ? title : `back before: ${title}. This drops ${drops}`;
      const ahead = direction === "up" ? aheadScript(name, number) : "";
      return `-- Outlive, schema ${name}, migration ${number} of ${MIGRATIONS.length} (checksum ${checksumOf(number)}), ${what}\n${ahead}BEGIN;\n  ${lockText(name)};\n  ${text(name, number).trim()}\nCOMMIT;\n`;
    })
    .join("\n");
}

function aheadScript(name: string, number: number): string {
  const schema = quotedSchema(name);
  const ahead = MIGRATIONS[number - 1]!.ahead?.(schema);
  if (!ahead) return "";
  const again = ahead.indexes.map((index) => `DROP INDEX CONCURRENTLY IF EXISTS ${schema}.${index};`);
  return `-- Outside of a transaction: nothing waits for it.\n${[...again, ...ahead.texts].join("\n")}\n`;
}

/** For pg_cron 1.5 or newer, which knows seconds. */
export function pgCronText(name: string): string {
  const schema = quotedSchema(name);
  return `-- Recovery without any Node process: every ${TICK_SECONDS} s, by pg_cron 1.5 or newer, as the role that runs this.
-- With an older pg_cron, or the cron of a machine, call it every minute:  psql "$URL" -c 'SELECT ${schema}.tick()'
CREATE EXTENSION IF NOT EXISTS pg_cron;
SELECT cron.schedule('${name}-tick', '${TICK_SECONDS} seconds', 'SELECT ${schema}.tick()');
-- pg_cron keeps a row per run: once a day, those of the day before go.
SELECT cron.schedule('${name}-tick-log', '17 3 * * *', $$DELETE FROM cron.job_run_details d USING cron.job j
  WHERE j.jobid = d.jobid AND j.jobname = '${name}-tick' AND d.end_time < now() - interval '1 day'$$);
-- To end it:  SELECT cron.unschedule('${name}-tick');  SELECT cron.unschedule('${name}-tick-log');
`;
}

/** What is made belongs to the schema's owner, whichever of its members makes it. Until the end of the transaction, or of the session. */
export function ownerText(name: string, until: "transaction" | "session"): string {
  return `DO $$ DECLARE owner name := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = '${name}'); BEGIN
    IF pg_has_role(owner, 'MEMBER') THEN PERFORM set_config('role', owner, ${until === "transaction"}); END IF;
  END $$;`;
}

function asOwner(name: string): string {
  return ownerText(name, "transaction");
}

function checksumRow(number: number): string {
  return `('checksum ${number}', x'${checksumOf(number)}'::bigint)`;
}

/** The steps before this one whose other texts it makes up for. */
function repaired(number: number): number[] {
  return number - 1 in ALSO_ACCEPTED ? [number - 1] : [];
}

/**
 * All at once and in the order in which the engine's own transactions take them. A step that held one and waited for the next would
 * stop, and be stopped by, a transaction that came the other way.
 */
function lockTables(schema: string, number: number): string {
  const { locks = [] } = MIGRATIONS[number - 1]!;
  if (locks.length === 0) return "";
  return `LOCK TABLE ${locks.map((table) => `${schema}.${table}`).join(", ")} IN ACCESS EXCLUSIVE MODE;`;
}

/** Inside a block of PL/pgSQL. What has no checksum is judged by the program (migrate.ts). */
function expectReleased(schema: string, name: string, version: number): string {
  const rows = MIGRATIONS.slice(0, version).map((_, i) => checksumRow(i + 1));
  if (rows.length === 0) return "";
  const accepted = Object.entries(ALSO_ACCEPTED).flatMap(([number, all]) =>
    all.map((sum) => `('checksum ${number}', x'${sum}'::bigint)`),
  );
  return `
    IF EXISTS (SELECT 1 FROM ${schema}.meta m JOIN (VALUES ${rows.join(", ")}) AS released (key, value) USING (key) WHERE m.value <> released.value
        AND (m.key, m.value) NOT IN (${accepted.join(", ")})) THEN
      RAISE EXCEPTION 'the schema ${name} was made by an unreleased build of Outlive' USING HINT = 'Nothing was changed. See: outlive migrate list';
    END IF;`;
}

function expect(schema: string, name: string, version: number): string {
  return `DO $$ DECLARE found bigint := (SELECT value FROM ${schema}.meta WHERE key = 'schema'); BEGIN
    IF coalesce(found, 0) <> ${version} THEN
      RAISE EXCEPTION 'the schema ${name} has version %, and this needs ${version}', coalesce(found, 0) USING HINT = 'Nothing was changed. See: outlive migrate list';
    END IF;${expectReleased(schema, name, version)}
  END $$;`;
}
