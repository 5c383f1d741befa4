package demo;

import java.io.Serializable;
import java.util.List;
import java.util.Map;

/** What a Java service might put into a queue. The golden files of tests/golden hold it, too. */
public class Order implements Serializable {

    private static final long serialVersionUID = 42;

    public enum Status { NEW, PAID, CANCELLED }

    public static class Item implements Serializable {

        private static final long serialVersionUID = 7;

        public String sku;
        public int quantity;
        public double price;
    }

    public int number;
    public String customer;
    public Item item;
    public List<String> tags;
    public Map<String, Object> attributes;
    public long createdAt;
    public boolean paid;
    public Status status;
    public Integer boxed;
}
