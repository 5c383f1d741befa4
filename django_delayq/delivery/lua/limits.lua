-- Read the limits of a queue, and of the tasks on it.
--
-- Keys     control
-- Returns  name of the limit, empty for the queue's own, and what is stored of it, in turn

local reply, fields = {}, redis.call('HGETALL', keys.control)
for i = 1, #fields, 2 do
  local name = fields[i] == 'queue_limit' and '' or fields[i]:sub(1, 6) == 'limit:' and fields[i]:sub(7)
  if name then
    reply[#reply + 1] = name
    reply[#reply + 1] = fields[i + 1]
  end
end
return reply
