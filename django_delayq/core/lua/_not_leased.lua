-- Part of claim: bury the jobs that are out of kills; move or cancel those of which a note says so; put back those that
-- wait behind another.
--
-- Uses     now_ms, is_ranked, seen, buried, moved, cancelled, behind, note_end
-- Fills    over

local records = {}
for _, job in ipairs(buried) do
  over[#over + 1] = job
  release_unique(keys.unique, job.tail, job.token)
  redis.call('HSET', keys.headers, job.token,
    write_job({ attempts = job.attempts, kills = job.kills, start = job.start, tail = with_batch(without_unique(job.tail)) }))
  local why = string.format('its worker died or lost the lease %d times while it ran', job.kills)
  redis.call('HSET', keys.errors, job.token, cjson.encode({ kind = 'killed', at = now_ms, error = why }))
  if keys.last_ended then
    records[#records + 1] = end_record(job.token, seen[job.token], 'dead', now_ms, job.attempts, why)
  end
  redis.call('ZADD', keys.dead, now_ms, job.token)
  add_to(keys.counters, 'dead', 1)
end
for _, job in ipairs(moved) do
  -- Moved while it lay in the destination queue: its first attempt is still to come.
  redis.call('ZADD', keys.returned, job.start, job.token)
  redis.call('HSET', keys.headers, job.token, write_job({ start = job.start, tail = job.tail }))
  redis.call('HSET', keys.payloads, job.token, job.payload)
end
add_ranks(moved, is_ranked, function(job) return job.start end)
for _, job in ipairs(behind) do
  -- It has begun no attempt, or it would wait behind nothing any more.
  redis.call('ZADD', keys.returned, job.again, job.token)
  redis.call('HSET', keys.headers, job.token, write_job({ start = job.start, tail = job.tail }))
  if job.is_new then redis.call('HSET', keys.payloads, job.token, job.payload) end
end
if #behind > 0 then add_ranks(behind, is_ranked, function(job) return job.again end) end
if #cancelled > 0 then
  local tokens = {}
  for i, job in ipairs(cancelled) do
    over[#over + 1] = job
    release_unique(keys.unique, job.tail, job.token)
    tokens[i] = job.token
    note_end(job.token, 'cancelled', job.payload, job.why or 'by a call of cancel()')
    if keys.last_ended then records[#records + 1] = end_record(job.token, job.payload, 'cancelled', now_ms, nil, job.why) end
  end
  remember(keys.ended, now_ms, 'cancelled', tokens)
  add_to(keys.counters, 'cancelled', #tokens)
end
if keys.last_ended and #records > 0 then add_records(keys.last_ended, records) end
