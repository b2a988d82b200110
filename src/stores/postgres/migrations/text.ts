// Migrations as SQL: what the runner sends is what `outlive migrate print` prints, so that whoever may not let a program migrate can
// read it and run it with psql.
import { stepChecksum } from "../../released-steps.ts";
import { quotedSchema } from "../schema.ts";
import { MIGRATIONS } from "./index.ts";
import { TICK_SECONDS } from "./tick.ts";

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
  ${MIGRATIONS[number - 1]!.up(schema).trim()}
  -- The schema may be opened to roles that may not call everything.
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ${schema} FROM PUBLIC;
  INSERT INTO ${schema}.meta (key, value) VALUES ('schema', ${number}), ('migration ${number}', ${schema}.now_ms()), ${checksumRow(number)}
    ON CONFLICT (key) DO UPDATE SET value = excluded.value;`;
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
      return `-- Outlive, schema ${name}, migration ${number} of ${MIGRATIONS.length} (checksum ${checksumOf(number)}), ${what}\nBEGIN;\n  ${lockText(name)};\n  ${text(name, number).trim()}\nCOMMIT;\n`;
    })
    .join("\n");
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

/** What is made belongs to the schema's owner, whichever of its members makes it. Until the end of the transaction. */
function asOwner(name: string): string {
  return `DO $$ DECLARE owner name := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = '${name}'); BEGIN
    IF pg_has_role(owner, 'MEMBER') THEN PERFORM set_config('role', owner, true); END IF;
  END $$;`;
}

function checksumRow(number: number): string {
  return `('checksum ${number}', x'${checksumOf(number)}'::bigint)`;
}

/** Inside a block of PL/pgSQL. What has no checksum is judged by the program (schema-record.ts). */
function expectReleased(schema: string, name: string, version: number): string {
  const rows = MIGRATIONS.slice(0, version).map((_, i) => checksumRow(i + 1));
  if (rows.length === 0) return "";
  return `
    IF EXISTS (SELECT 1 FROM ${schema}.meta m JOIN (VALUES ${rows.join(", ")}) AS released (key, value) USING (key) WHERE m.value <> released.value) THEN
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
