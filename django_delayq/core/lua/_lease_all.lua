-- Part of claim: write the leases, and hand out the jobs.
--
-- Uses     now_ms, lease_ms, leased, hand_out

local ends, heads, bodies, late, header_of = {}, {}, {}, {}, leased_headers(args.request, args.owner, now_ms)
local lease_end = now_ms + lease_ms
for i, job in ipairs(leased) do
  local token, tail = job.token, job.tail
  if tail ~= '' then
    local first, ahead = run_of(tail)
    if ahead then tail = with_run(tail, first) end
    -- A unique key that begins with 's' is free from now on.
    if tail:byte(unique_at(tail)) == 115 then
      release_unique(keys.unique, tail, token)
      tail = without_unique(tail)
    end
  end
  ends[2 * i - 1], ends[2 * i] = lease_end, token
  heads[2 * i - 1], heads[2 * i] = token, header_of(job, tail)
  if job.is_new then
    bodies[#bodies + 1] = token
    bodies[#bodies + 1] = job.payload
  end
  if job.flags >= 2 then late[#late + 1] = token end
  hand_out(job)
end
redis.call('ZADD', keys.leases, unpack(ends))
redis.call('HSET', keys.headers, unpack(heads))
if #bodies > 0 then redis.call('HSET', keys.payloads, unpack(bodies)) end
-- With the end of the leases, so that the entry of a vanished process can be swept; and with the tokens of late jobs,
-- as their headers no longer say so.
redis.call('HSET', keys.claims, args.owner, args.request .. struct.pack('<d', lease_end) .. table.concat(late, ' '))
